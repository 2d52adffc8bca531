/* Memory, devices, contexts. */
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

#include "replay.h"

enum { WORDS = 1000 };

static sigjmp_buf fault;

static void on_fault(int number)
{
    (void)number;
    siglongjmp(fault, 1);
}

/* Reports whether the host can read an address. */
static bool can_read(CUdeviceptr p)
{
    struct sigaction action = {.sa_handler = on_fault};
    struct sigaction old;
    volatile bool readable = false;
    sigaction(SIGSEGV, &action, &old);
    if (sigsetjmp(fault, 1) == 0) {
        (void)*(volatile char *)(uintptr_t)p;
        readable = true;
    }
    sigaction(SIGSEGV, &old, NULL);
    return readable;
}

void scenario_memory(void)
{
    use_device(0);
    size_t free_before;
    size_t free_after;
    size_t total;
    OK(cuMemGetInfo_v2(&free_before, &total));
    CUdeviceptr p = new_memory(4 * WORDS);
    EXPECT(!can_read(p));
    EXPECT(count_wrong(p, WORDS, 0xd7d7d7d7) == 0); /* poisoned */
    OK(cuMemsetD32_v2(p, 7, WORDS));
    EXPECT(count_wrong(p, WORDS, 7) == 0);
    OK(cuMemGetInfo_v2(&free_after, &total));
    EXPECT(free_after < free_before);

    MISUSE(CUDA_ERROR_INVALID_VALUE, cuMemsetD32_v2(p, 7, WORDS + 1));     /* overrun */
    MISUSE(CUDA_ERROR_INVALID_VALUE, cuMemsetD32_v2(p - 4, 7, 2));         /* begins before it */
    MISUSE(CUDA_ERROR_INVALID_VALUE, cuMemsetD32_v2(p + 2, 7, 1));         /* unaligned */
    MISUSE(CUDA_ERROR_INVALID_VALUE, cuMemsetD32_v2(p, 7, SIZE_MAX / 2));  /* overflow */
    MISUSE(CUDA_ERROR_INVALID_VALUE, cuMemsetD32_v2(p, 7, SIZE_MAX / 4 + 2));
    MISUSE(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p + 4));
    uint32_t word = 5;
    MISUSE(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2((uintptr_t)&word, &word, 4)); /* not device memory */
    MISUSE(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(p, (void *)(uintptr_t)p, 4)); /* not host memory */
    OK(cuMemFree_v2(p));
    OK(cuMemFree_v2(0));
    MISUSE(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p));
    MISUSE(CUDA_ERROR_INVALID_VALUE, cuMemcpy((uintptr_t)&word, p, 4)); /* freed */
    OK(cuMemGetInfo_v2(&free_after, &total));
    EXPECT(free_after == free_before);

    EXPECT(cusim_set("CUSIM_TOTAL_MEM", "8192") == 0);
    p = new_memory(5000);
    CUdeviceptr q;
    RESULT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&q, 1));
    OK(cuMemFree_v2(p));
    OK(cuMemAlloc_v2(&q, 1));
    OK(cuMemFree_v2(q));
}

static long long attribute(CUpointer_attribute a, CUdeviceptr p)
{
    long long value = 0;
    OK(cuPointerGetAttribute(&value, a, p));
    return value;
}

void scenario_attributes(void)
{
    CUcontext ctx = use_device(1);
    CUdeviceptr p = new_memory(100);
    CUdeviceptr q = new_memory(100);
    uint32_t *host = new_host(1);
    CUdeviceptr base;
    size_t size;
    OK(cuCtxPopCurrent_v2(NULL)); /* attributes need no context */
    EXPECT(attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p + 99) == CU_MEMORYTYPE_DEVICE);
    EXPECT(attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)host) == CU_MEMORYTYPE_HOST);
    EXPECT(attribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p) == 1);
    EXPECT(attribute(CU_POINTER_ATTRIBUTE_IS_MANAGED, p) == 0);
    EXPECT(attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, p) == attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, p + 1));
    EXPECT(attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, p) != attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, q));
    EXPECT(attribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p) == 1);
    EXPECT(cusim_set("CUSIM_NO_IPC", "1") == 0);
    EXPECT(attribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p) == 0);
    RESULT(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p + 100));
    RESULT(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)&size));
    EXPECT(cusim_misuse() == 0);
    MISUSE(CUDA_ERROR_INVALID_CONTEXT, cuMemGetAddressRange_v2(&base, &size, p));
    OK(cuCtxPushCurrent_v2(ctx));
    OK(cuMemGetAddressRange_v2(&base, &size, p + 50));
    EXPECT(base == p && size == 100);
    CUipcMemHandle handle;
    RESULT(CUDA_ERROR_NOT_SUPPORTED, cuIpcGetMemHandle(&handle, p));
    OK(cuMemFree_v2(p));
    OK(cuMemFree_v2(q));
    OK(cuMemFreeHost(host));
}

void scenario_devices(void)
{
    int count;
    int value;
    CUuuid first;
    CUuuid second;
    const char *name;
    RESULT(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&count));
    EXPECT(cusim_set("CUSIM_NO_DEVICE", "1") == 0);
    RESULT(CUDA_ERROR_NO_DEVICE, cuInit(0));
    EXPECT(cusim_set("CUSIM_NO_DEVICE", NULL) == 0);
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    EXPECT(count == 4);
    OK(cuDeviceGetUuid_v2(&first, 0));
    OK(cuDeviceGetUuid_v2(&second, 1));
    EXPECT(memcmp(&first, &second, sizeof first) != 0);
    OK(cuDeviceCanAccessPeer(&value, 0, 1));
    EXPECT(value == 1);
    EXPECT(cusim_set("CUSIM_NO_P2P", "1") == 0);
    OK(cuDeviceCanAccessPeer(&value, 0, 1));
    EXPECT(value == 0);
    RESULT(CUDA_ERROR_INVALID_DEVICE, cuDeviceCanAccessPeer(&value, 0, 4));
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 0));
    EXPECT(value == 1);
    OK(cuGetErrorName(CUDA_ERROR_NOT_READY, &name));
    EXPECT(strcmp(name, "CUDA_ERROR_NOT_READY") == 0);
    EXPECT(cusim_set("CUSIM_UNKNOWN", "1") == -1);
    EXPECT(cusim_set("CUSIM_DELAY_US", "-1") == -1);
    EXPECT(cusim_calls("cuInit") == 2);
}

void scenario_visible(void)
{
    int count;
    CUuuid uuid;
    char name[100];
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    for (int i = 0; i < count; i++) {
        OK(cuDeviceGetUuid_v2(&uuid, i));
        OK(cuDeviceGetName(name, sizeof name, i));
        printf("%s %.6s\n", name, uuid.bytes);
    }
}

void scenario_contexts(void)
{
    unsigned flags;
    int active;
    CUcontext first = use_device(0);
    CUcontext again;
    CUcontext second;
    CUcontext current;
    OK(cuDevicePrimaryCtxRetain(&again, 0));
    EXPECT(again == first);
    OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
    EXPECT(!active);
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    OK(cuCtxPushCurrent_v2(second));
    OK(cuCtxEnablePeerAccess(first, 0));
    RESULT(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(first, 0));
    MISUSE(CUDA_ERROR_INVALID_DEVICE, cuCtxEnablePeerAccess(second, 0));
    OK(cuCtxPopCurrent_v2(&current));
    EXPECT(current == second);
    OK(cuCtxGetCurrent(&current));
    EXPECT(current == first);

    OK(cuDevicePrimaryCtxRelease_v2(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    EXPECT(active);
    CUdeviceptr p = new_memory(10);
    CUstream s = new_stream();
    CUevent e = new_event(0);
    OK(cuMemsetD8Async(p, 1, 10, s));
    OK(cuEventRecord(e, s));
    OK(cuDevicePrimaryCtxRelease_v2(0)); /* ends all of it */
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    EXPECT(!active);
    MISUSE(CUDA_ERROR_INVALID_CONTEXT, cuMemFree_v2(p));
    MISUSE(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease_v2(0));
    use_device(0);
    MISUSE(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p));
    MISUSE(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery(s));
    MISUSE(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(e));

    CUcontext own;
    OK(cuCtxCreate_v2(&own, 0, 0));
    p = new_memory(10);
    OK(cuCtxDestroy_v2(own));
    MISUSE(CUDA_ERROR_INVALID_CONTEXT, cuCtxPushCurrent_v2(own));
    MISUSE(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p));
    EXPECT(cusim_set("CUSIM_BAD_DEVICE", "2") == 0);
    RESULT(CUDA_ERROR_DEVICE_UNAVAILABLE, cuDevicePrimaryCtxRetain(&own, 2));
    OK(cuCtxSetCurrent(NULL));
    MISUSE(CUDA_ERROR_INVALID_CONTEXT, cuCtxPopCurrent_v2(NULL));
}

void scenario_host(void)
{
    use_device(0);
    CUstream s = new_stream();
    CUdeviceptr p = new_memory(4 * WORDS);
    uint32_t *pinned = new_host(WORDS);
    uint32_t *pageable = malloc(4 * WORDS);
    EXPECT(pageable != NULL);
    EXPECT(pinned[0] == 0xd7d7d7d7);
    uint64_t blocking = cusim_blocking();
    OK(cuMemsetD32Async(p, 3, WORDS, s));
    OK(cuMemcpyAsync((uintptr_t)pinned, p, 4 * WORDS, s));
    EXPECT(cusim_blocking() == blocking);
    OK(cuMemcpyAsync((uintptr_t)pageable, p, 4 * WORDS, s)); /* waits */
    EXPECT(cusim_blocking() == blocking + 1);
    EXPECT(pageable[WORDS - 1] == 3);
    EXPECT(pinned[WORDS - 1] == 3);

    OK(cuMemHostRegister_v2(pageable, 4 * WORDS, CU_MEMHOSTREGISTER_PORTABLE));
    MISUSE(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister_v2(pageable + 1, 4 * WORDS, 0));
    OK(cuMemcpyAsync((uintptr_t)pageable, p, 4 * WORDS, s));
    EXPECT(cusim_blocking() == blocking + 1);
    MISUSE(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(pageable + 1));
    MISUSE(CUDA_ERROR_INVALID_VALUE, cuMemcpyAsync(p, (uintptr_t)pageable + 4, 4 * WORDS, s));
    OK(cuMemHostUnregister(pageable));
    MISUSE(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(pageable));
    OK(cuMemHostRegister_v2(pageable + 1, 4, 0));
    MISUSE(CUDA_ERROR_INVALID_VALUE, cuMemcpyAsync(p, (uintptr_t)pageable, 8, s)); /* begins before it */
    OK(cuMemHostUnregister(pageable + 1));
    MISUSE(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(pageable));
    OK(cuMemFreeHost(pinned));
    OK(cuMemFree_v2(p));
    free(pageable);
    EXPECT(cusim_calls("cuMemcpyAsync") == 5);
}
