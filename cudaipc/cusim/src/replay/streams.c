/* Streams, events, hold and release. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "replay.h"

enum { WORDS = 4096 };

/* A value goes around all devices, each of which waits for the one before. */
void scenario_streams(void)
{
    enum { DEVICES = 4, ROUNDS = 20 };
    CUcontext contexts[DEVICES];
    CUstream streams[DEVICES];
    CUdeviceptr memory[DEVICES];
    CUevent events[DEVICES];
    for (int i = 0; i < DEVICES; i++) {
        contexts[i] = use_device(i);
        streams[i] = new_stream();
        memory[i] = new_memory(4 * WORDS);
        events[i] = new_event(CU_EVENT_DISABLE_TIMING);
    }
    OK(cuMemsetD32Async(memory[DEVICES - 1], 42, WORDS, streams[DEVICES - 1]));
    OK(cuEventRecord(events[DEVICES - 1], streams[DEVICES - 1]));
    for (int n = 0; n < ROUNDS; n++) {
        for (int i = 0; i < DEVICES; i++) {
            int before = (i + DEVICES - 1) % DEVICES;
            OK(cuCtxSetCurrent(contexts[i]));
            OK(cuStreamWaitEvent(streams[i], events[before], 0));
            OK(cuMemcpyPeerAsync(memory[i], contexts[i], memory[before], contexts[before], 4 * WORDS, streams[i]));
            OK(cuEventRecord(events[i], streams[i]));
            OK(cuStreamWaitEvent(streams[before], events[i], 0)); /* which may overwrite it after that */
        }
    }
    OK(cuEventSynchronize(events[DEVICES - 1]));
    EXPECT(count_wrong(memory[DEVICES - 1], WORDS, 42) == 0);
    for (int i = 0; i < DEVICES; i++) {
        OK(cuCtxSetCurrent(contexts[i]));
        OK(cuStreamDestroy_v2(streams[i]));
        OK(cuEventDestroy_v2(events[i]));
        OK(cuMemFree_v2(memory[i]));
        MISUSE(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize(streams[i]));
        OK(cuDevicePrimaryCtxRelease_v2(i));
    }
}

/* The default stream waits for blocking streams, and they wait for it. */
void scenario_default_stream(void)
{
    use_device(0);
    CUstream blocking;
    OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    CUstream other = new_stream();
    CUdeviceptr p = new_memory(4);
    EXPECT(cusim_hold(NULL) == 0);
    OK(cuMemsetD32Async(p, 1, 1, NULL));
    OK(cuMemsetD32Async(p, 2, 1, blocking));
    OK(cuMemsetD32Async(p, 3, 1, other));
    OK(cuStreamSynchronize(other));
    RESULT(CUDA_ERROR_NOT_READY, cuStreamQuery(blocking));
    EXPECT(cusim_release(NULL) == 0);
    EXPECT(count_wrong(p, 1, 2) == 0);

    EXPECT(cusim_hold(blocking) == 0);
    OK(cuMemsetD32Async(p, 4, 1, blocking));
    OK(cuMemsetD32Async(p, 5, 1, NULL));
    EXPECT(cusim_queued(NULL) == 2); /* a wait and the fill */
    EXPECT(cusim_release(blocking) == 0);
    OK(cuCtxSynchronize());
    EXPECT(count_wrong(p, 1, 5) == 0);
    OK(cuMemFree_v2(p));
}

static void add_one(void *data)
{
    int count;
    *(int *)data += 1;
    RESULT(CUDA_ERROR_NOT_PERMITTED, cuDeviceGetCount(&count));
}

static void *use_stream(void *context)
{
    enum { ROUNDS = 200 };
    OK(cuCtxPushCurrent_v2(context));
    CUstream s = new_stream();
    CUdeviceptr p = new_memory(4 * WORDS);
    for (unsigned i = 0; i < ROUNDS; i++) {
        CUevent e = new_event(CU_EVENT_DISABLE_TIMING);
        OK(cuMemsetD32Async(p, i, WORDS, s));
        OK(cuEventRecord(e, s));
        OK(cuEventDestroy_v2(e));
    }
    int calls = 0;
    OK(cuLaunchHostFunc(s, add_one, &calls));
    OK(cuStreamSynchronize(s));
    EXPECT(calls == 1);
    EXPECT(count_wrong(p, WORDS, ROUNDS - 1) == 0);
    OK(cuMemFree_v2(p));
    OK(cuStreamDestroy_v2(s));
    OK(cuCtxPopCurrent_v2(NULL));
    return NULL;
}

/* Threads use one context at the same time. */
void scenario_threads(void)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    CUcontext ctx = use_device(0);
    for (int i = 0; i < THREADS; i++)
        EXPECT(pthread_create(&threads[i], NULL, use_stream, ctx) == 0);
    for (int i = 0; i < THREADS; i++)
        EXPECT(pthread_join(threads[i], NULL) == 0);
    EXPECT(cusim_misuse() == THREADS); /* each host function called the driver */
}

void scenario_events(void)
{
    CUcontext other = use_device(1);
    CUstream far = new_stream();
    CUcontext own = use_device(0);
    CUstream a = new_stream();
    CUstream b = new_stream();
    CUevent e = new_event(0);
    CUdeviceptr p = new_memory(4);
    OK(cuEventQuery(e)); /* was never recorded */
    OK(cuEventSynchronize(e));

    /* The wait is for the record before it, not for the next one. */
    EXPECT(cusim_hold(a) == 0);
    OK(cuStreamWaitEvent(b, e, 0));
    OK(cuEventRecord(e, a));
    RESULT(CUDA_ERROR_NOT_READY, cuEventQuery(e));
    OK(cuStreamSynchronize(b));

    /* A wait for the record of a is not over when b has made a later one. */
    CUstream c = new_stream();
    OK(cuStreamWaitEvent(c, e, 0));
    OK(cuEventRecord(e, b));
    OK(cuEventSynchronize(e));
    OK(cuEventQuery(e));
    RESULT(CUDA_ERROR_NOT_READY, cuStreamQuery(c));
    OK(cuEventDestroy_v2(e)); /* which the wait survives */
    RESULT(CUDA_ERROR_NOT_READY, cuStreamQuery(c));
    EXPECT(cusim_release(a) == 0);
    OK(cuStreamSynchronize(c));
    MISUSE(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(e, a));

    e = new_event(0);
    CUevent later = new_event(0);
    MISUSE(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(e, far)); /* of another context */
    MISUSE(CUDA_ERROR_INVALID_VALUE, cuEventCreate(&later, CU_EVENT_INTERPROCESS));
    OK(cuEventRecord(e, a));
    OK(cuMemsetD32Async(p, 1, 1, a));
    OK(cuEventRecord(later, a));
    OK(cuCtxSetCurrent(other));
    OK(cuStreamWaitEvent(far, later, 0)); /* a wait may be of another context */
    OK(cuStreamSynchronize(far));
    float ms = -1;
    OK(cuEventElapsedTime(&ms, e, later));
    EXPECT(ms >= 0);

    /* The records of an event that are not done are limited. */
    OK(cuCtxSetCurrent(own));
    EXPECT(cusim_hold(a) == 0);
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; i < 1000 && result == CUDA_SUCCESS; i++)
        result = cuEventRecord(e, a);
    EXPECT(result == CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(cusim_release(a) == 0);
    OK(cuStreamSynchronize(a));
    OK(cuEventRecord(e, a));
}

/* Waits until a thread is blocked in a function, which has counted its call before it blocks. */
static void until_blocking(uint64_t calls)
{
    while (cusim_blocking() < calls)
        continue;
}

/* Memory that another thread frees. */
struct release {
    CUcontext context;
    CUdeviceptr device; /* or 0 */
    void *host;         /* or null */
    atomic_bool done;
};

static void *release_memory(void *release)
{
    struct release *r = release;
    OK(cuCtxPushCurrent_v2(r->context));
    if (r->host != NULL)
        OK(cuMemFreeHost(r->host));
    OK(cuMemFree_v2(r->device));
    atomic_store(&r->done, true);
    return NULL;
}

/* A call that releases memory waits for the work of a stream that is held back. */
static void expect_wait(struct release *r, CUstream s, volatile uint32_t *host)
{
    enum { YIELDS = 1000 };
    pthread_t thread;
    uint64_t blocking = cusim_blocking();
    EXPECT(pthread_create(&thread, NULL, release_memory, r) == 0);
    until_blocking(blocking + 1);
    for (int i = 0; i < YIELDS; i++) {
        EXPECT(!atomic_load(&r->done));
        sched_yield();
    }
    EXPECT(host[0] == 1);
    RESULT(CUDA_ERROR_NOT_READY, cuStreamQuery(s));
    cusim_release_all();
    EXPECT(pthread_join(thread, NULL) == 0);
    EXPECT(host[0] == 9);
}

void scenario_hold(void)
{
    cusim_hold_all(); /* before the first call of the driver */
    CUcontext ctx = use_device(0);
    CUstream a = new_stream();
    CUstream b = new_stream();
    uint32_t *host = new_host(1);
    CUdeviceptr p = new_memory(4);
    host[0] = 1;
    OK(cuMemsetD32Async(p, 9, 1, a));
    OK(cuMemcpyAsync((uintptr_t)host, p, 4, a));
    EXPECT(cusim_queued(a) == 2);
    EXPECT(cusim_queued(b) == 0);
    OK(cuStreamQuery(b));
    expect_wait(&(struct release){.context = ctx, .device = new_memory(4)}, a, host);

    host[0] = 1;
    EXPECT(cusim_hold(a) == 0);
    OK(cuMemcpyAsync((uintptr_t)host, p, 4, a));
    expect_wait(&(struct release){.context = ctx, .host = new_host(1)}, a, host);

    EXPECT(cusim_hold(a) == 0);
    OK(cuMemsetD32Async(p, 10, 1, a));
    OK(cuMemsetD32Async(p, 11, 1, b));
    OK(cuStreamSynchronize(b));
    OK(cuStreamDestroy_v2(a)); /* its work is done later */
    EXPECT(cusim_queued(a) == 1);
    EXPECT(count_wrong(p, 1, 11) == 0);
    EXPECT(cusim_release(a) == 0);
    OK(cuCtxSynchronize());
    EXPECT(count_wrong(p, 1, 10) == 0);
    EXPECT(cusim_hold(a) == -1);

    EXPECT(cusim_set("CUSIM_HOLD", "1") == 0);
    OK(cuMemsetD32Async(p, 12, 1, b));
    RESULT(CUDA_ERROR_NOT_READY, cuStreamQuery(b));
    EXPECT(cusim_set("CUSIM_HOLD", "0") == 0);
    OK(cuStreamSynchronize(b));
}

void scenario_held(void)
{
    use_device(0);
    CUstream s = new_stream();
    CUdeviceptr p = new_memory(1);
    OK(cuMemsetD8Async(p, 1, 1, s));
    RESULT(CUDA_ERROR_NOT_READY, cuStreamQuery(s));
    cusim_release_all();
    OK(cuStreamSynchronize(s));
}
