/* Late work, and dropped calls. */
#include "replay.h"

enum { WORDS = 4096 };

/* Runs a fill, a copy after it, and another fill after that, on streams of their own. Returns the
   number of wrong words. flags: bit 0 the copy waits, bit 1 the second fill waits. */
static size_t run_chain(unsigned flags)
{
    CUstream a = new_stream();
    CUstream b = new_stream();
    CUevent written = new_event(CU_EVENT_DISABLE_TIMING);
    CUevent read = new_event(CU_EVENT_DISABLE_TIMING);
    CUdeviceptr from = new_memory(4 * WORDS);
    CUdeviceptr to = new_memory(4 * WORDS);
    cusim_hold_all(); /* so that both streams begin at the same time */
    OK(cuMemsetD32Async(from, 1, WORDS, a));
    OK(cuEventRecord(written, a));
    if (flags & 1)
        OK(cuStreamWaitEvent(b, written, 0));
    OK(cuMemcpyDtoDAsync_v2(to, from, 4 * WORDS, b));
    OK(cuEventRecord(read, b));
    if (flags & 2)
        OK(cuStreamWaitEvent(a, read, 0));
    OK(cuMemsetD32Async(from, 2, WORDS, a));
    cusim_release_all();
    OK(cuCtxSynchronize());
    size_t wrong = count_wrong(to, WORDS, 1);
    OK(cuMemFree_v2(from));
    OK(cuMemFree_v2(to));
    return wrong;
}

enum writer { FILL, COPY, KERNEL };

/* Sets WORDS words to 1 with a kernel. */
static void launch_fill(CUdeviceptr p, CUstream s)
{
    const char *ptx = ".version 6.4 .target sm_50 "
                      ".entry fill(.param .u64 dst, .param .u64 n, .param .u64 size, .param .u64 value) { ret; }";
    unsigned long long words = WORDS;
    unsigned long long size = 4;
    unsigned long long one = 1;
    CUmodule m;
    CUfunction fill;
    OK(cuModuleLoadData(&m, ptx));
    OK(cuModuleGetFunction(&fill, m, "fill"));
    OK(cuLaunchKernel(fill, WORDS / 32, 1, 1, 32, 1, 1, 0, s, (void *[]){&p, &words, &size, &one}, NULL));
}

/* Runs two operations that do not wait for each other, of which the second is a copy from memory that
   the first one writes. The memory has the written value before, so that only the bytes in between
   can be wrong. Returns the number of wrong words. */
static size_t run_unordered(enum writer writer)
{
    CUstream a = new_stream();
    CUstream b = new_stream();
    CUdeviceptr source = new_memory(4 * WORDS);
    CUdeviceptr middle = new_memory(4 * WORDS);
    CUdeviceptr to = new_memory(4 * WORDS);
    OK(cuMemsetD32_v2(source, 1, WORDS));
    OK(cuMemsetD32_v2(middle, 1, WORDS));
    cusim_hold_all();
    if (writer == COPY)
        OK(cuMemcpyAsync(middle, source, 4 * WORDS, a));
    else if (writer == FILL)
        OK(cuMemsetD32Async(middle, 1, WORDS, a));
    else
        launch_fill(middle, a);
    OK(cuMemcpyAsync(to, middle, 4 * WORDS, b));
    cusim_release_all();
    OK(cuCtxSynchronize());
    size_t wrong = count_wrong(to, WORDS, 1);
    OK(cuMemFree_v2(source));
    OK(cuMemFree_v2(middle));
    OK(cuMemFree_v2(to));
    return wrong;
}

/* Reports whether one of several runs gives wrong words: the copy can read one half before and one
   after the other operation. */
static bool is_wrong_at_times(enum writer writer)
{
    enum { RUNS = 40 };
    for (int i = 0; i < RUNS; i++) {
        if (run_unordered(writer) > 0)
            return true;
    }
    return false;
}

/* With a delay each missing wait gives wrong bytes. */
void scenario_late(void)
{
    use_device(0);
    EXPECT(cusim_set("CUSIM_DELAY_US", "20000") == 0);
    EXPECT(is_wrong_at_times(FILL));
    EXPECT(is_wrong_at_times(COPY));
    EXPECT(is_wrong_at_times(KERNEL));
    for (int i = 0; i < 10; i++) {
        EXPECT(run_chain(3) == 0);
        EXPECT(run_chain(2) > 0);
        EXPECT(run_chain(1) > 0);
    }
}

/* A dropped call has the effect of a missing one. */
void scenario_drop(void)
{
    use_device(0);
    EXPECT(cusim_set("CUSIM_DELAY_US", "20000") == 0);
    EXPECT(cusim_set("CUSIM_PROCESS", "p") == 0);
    EXPECT(run_chain(3) == 0); /* with the streams s1 and s2 */
    EXPECT(cusim_set("CUSIM_DROP", "p wait s4 1") == 0);
    EXPECT(run_chain(3) > 0);
    EXPECT(cusim_set("CUSIM_DROP", "p wait s5 1") == 0);
    EXPECT(run_chain(3) > 0);
    EXPECT(cusim_set("CUSIM_DROP", "p record s7 1") == 0);
    EXPECT(run_chain(3) > 0);
    EXPECT(cusim_set("CUSIM_DROP", "p record s9 2") == 0); /* there is none */
    EXPECT(run_chain(3) == 0);

    CUstream s = new_stream();
    CUevent e = new_event(0);
    OK(cuMemsetD8Async(new_memory(1), 1, 1, s));
    OK(cuEventRecord(e, s));
    EXPECT(cusim_set("CUSIM_DROP", "p sync s11 1") == 0);
    OK(cuEventSynchronize(e));
    RESULT(CUDA_ERROR_NOT_READY, cuEventQuery(e));
    OK(cuEventSynchronize(e));
    OK(cuEventQuery(e));
}

void scenario_chain(void)
{
    use_device(0);
    EXPECT(run_chain(3) == 0);
}
