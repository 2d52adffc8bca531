/* Host memory that the driver knows, and properties of addresses. */
#include <string.h>
#include <sys/mman.h>

#include "stream.h"

static CUresult allocate(void **address, size_t size, unsigned flags)
{
    const unsigned known = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    if (size == 0 || (flags & ~known) != 0)
        return misuse(CUDA_ERROR_INVALID_VALUE, "the size is %zu, the flags are %#x", size, flags);
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memset(p, POISON, size);
    memory_add(MEMORY_HOST, current_context(), p, size);
    *address = p;
    return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **address, size_t size, unsigned int flags)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(allocate(address, size, flags));
}

CUresult cuMemAllocHost_v2(void **address, size_t size)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(allocate(address, size, CU_MEMHOSTALLOC_PORTABLE));
}

/* Removes host memory of a kind that begins at the address, once all work of the process is done.
   Returns error if there is none. */
static CUresult release(void *address, enum memory_kind kind, CUresult error)
{
    count_blocking();
    if (!config()->no_free_wait)
        process_drain();
    struct allocation *a = memory_find((uintptr_t)address);
    if (a == NULL || a->kind != kind || a->address != address)
        return misuse(error, "%p is not the beginning of such memory", address);
    memory_remove(a);
    return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void *address)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(release(address, MEMORY_HOST, CUDA_ERROR_INVALID_VALUE));
}

static CUresult register_memory(void *address, size_t size, unsigned flags)
{
    const unsigned known = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
    if (address == NULL || size == 0 || (flags & ~known) != 0)
        return misuse(CUDA_ERROR_INVALID_VALUE, "the address is %p, the size %zu, the flags %#x", address, size, flags);
    if (memory_find((uintptr_t)address) != NULL || memory_find((uintptr_t)address + size - 1) != NULL)
        return misuse(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "the driver already knows memory at %p", address);
    memory_add(MEMORY_REGISTERED, current_context(), address, size);
    return CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(void *address, size_t size, unsigned int flags)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(register_memory(address, size, flags));
}

CUresult cuMemHostUnregister(void *address)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(release(address, MEMORY_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED));
}

static CUresult get_range(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    struct allocation *a = memory_find((uintptr_t)address);
    if (a == NULL)
        return CUDA_ERROR_NOT_FOUND;
    if (base != NULL)
        *base = (CUdeviceptr)(uintptr_t)a->address;
    if (size != NULL)
        *size = a->size;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(get_range(base, size, address));
}

/* Writes a property of an address; its type depends on the attribute. An unknown address is not
   reported as misuse: this function is how a program recognizes memory. */
static CUresult get_attribute(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    struct allocation *a = memory_find((uintptr_t)address);
    if (value == NULL || a == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    bool on_device = a->kind == MEMORY_DEVICE || a->kind == MEMORY_IMPORTED;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)value = a->context->handle;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)value = on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)value = address;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (on_device)
            return CUDA_ERROR_INVALID_VALUE;
        *(void **)value = (void *)(uintptr_t)address;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(unsigned long long *)value = a->id;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)value = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)value = a->device;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(int *)value = a->kind == MEMORY_DEVICE && !a->pooled && !config()->no_ipc;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)value = (CUdeviceptr)(uintptr_t)a->address;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)value = a->size;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    ENTER(NEEDS_DRIVER);
    LEAVE(get_attribute(value, attribute, address));
}
