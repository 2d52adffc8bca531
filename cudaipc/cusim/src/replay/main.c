/* The program: replay SCENARIO runs one scenario, replay lists those that need no environment. */
#include "replay.h"

static const struct scenario {
    const char *name;
    void (*run)(void);
    bool listed;
} scenarios[] = {
    {"memory", scenario_memory, true},
    {"attributes", scenario_attributes, true},
    {"devices", scenario_devices, true},
    {"contexts", scenario_contexts, true},
    {"host", scenario_host, true},
    {"streams", scenario_streams, true},
    {"default_stream", scenario_default_stream, true},
    {"threads", scenario_threads, true},
    {"events", scenario_events, true},
    {"hold", scenario_hold, true},
    {"late", scenario_late, true},
    {"drop", scenario_drop, true},
    {"kernels", scenario_kernels, true},
    {"strides", scenario_strides, true},
    {"modules", scenario_modules, true},
    {"launch", scenario_launch, true},
    {"failures", scenario_failures, true},
    {"ipc", scenario_ipc, true},
    {"ipc_misuse", scenario_ipc_misuse, true},
    {"ipc_destroyed", scenario_ipc_destroyed, true},
    {"ipc_dead", scenario_ipc_dead, true},
    {"chain", scenario_chain, false},
    {"visible", scenario_visible, false},
    {"held", scenario_held, false},
    {"child_ipc", child_ipc, false},
    {"child_ipc_misuse", child_ipc_misuse, false},
    {"child_ipc_destroyed", child_ipc_destroyed, false},
    {"child_ipc_dead", child_ipc_dead, false},
};

enum { SCENARIOS = sizeof scenarios / sizeof *scenarios };

CUcontext use_device(int device)
{
    CUcontext ctx;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&ctx, device));
    OK(cuCtxSetCurrent(ctx));
    return ctx;
}

CUstream new_stream(void)
{
    CUstream s;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    return s;
}

CUevent new_event(unsigned flags)
{
    CUevent e;
    OK(cuEventCreate(&e, flags));
    return e;
}

CUdeviceptr new_memory(size_t bytes)
{
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, bytes));
    return p;
}

uint32_t *new_host(size_t words)
{
    void *p;
    OK(cuMemHostAlloc(&p, 4 * words, CU_MEMHOSTALLOC_PORTABLE));
    return p;
}

size_t count_wrong(CUdeviceptr from, size_t words, uint32_t want)
{
    size_t wrong = 0;
    uint32_t *host = malloc(4 * words);
    EXPECT(host != NULL);
    OK(cuMemcpyDtoH_v2(host, from, 4 * words));
    for (size_t i = 0; i < words; i++)
        wrong += host[i] != want;
    free(host);
    return wrong;
}

int main(int argc, char **argv)
{
    for (int i = 0; i < SCENARIOS; i++) {
        if (argc < 2 && scenarios[i].listed)
            printf("%s\n", scenarios[i].name);
        if (argc == 2 && strcmp(argv[1], scenarios[i].name) == 0) {
            scenarios[i].run();
            return 0;
        }
    }
    return argc < 2 ? 0 : 2;
}
