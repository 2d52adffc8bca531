/* Scenarios that are replayed on the simulator, as a program that a test builds with a sanitizer.
   Each ends the process with status 1 at the first difference. */
#ifndef CUSIM_REPLAY_H
#define CUSIM_REPLAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../cuda_abi.h"
#include "../cusim.h"

/* EXPECT ends the process if a condition is false. */
#define EXPECT(condition)                                                                  \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition);       \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

/* RESULT ends the process if a call does not return a result, OK if it returns an error. */
#define RESULT(want, call)                                                                 \
    do {                                                                                   \
        CUresult actual = (call);                                                          \
        if (actual != (want)) {                                                            \
            fprintf(stderr, "%s:%d: %s is %d\n", __FILE__, __LINE__, #call, (int)actual);  \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)
#define OK(call) RESULT(CUDA_SUCCESS, call)

/* MISUSE ends the process if a call does not return an error, or is not reported as misuse. */
#define MISUSE(want, call)                        \
    do {                                          \
        uint64_t reports = cusim_misuse();        \
        RESULT(want, call);                       \
        EXPECT(cusim_misuse() == reports + 1);    \
    } while (0)

/* Initializes the driver and makes the primary context of a device current. */
CUcontext use_device(int device);

CUstream new_stream(void);
CUevent new_event(unsigned flags);
CUdeviceptr new_memory(size_t bytes);

/* Returns page-locked memory of n words of 32 bits. */
uint32_t *new_host(size_t words);

/* Copies n words from a device to the host and returns how many differ from want. */
size_t count_wrong(CUdeviceptr from, size_t words, uint32_t want);

void scenario_memory(void);
void scenario_attributes(void);
void scenario_devices(void);
void scenario_contexts(void);
void scenario_host(void);
void scenario_streams(void);
void scenario_default_stream(void);
void scenario_threads(void);
void scenario_events(void);
void scenario_hold(void);
void scenario_late(void);
void scenario_drop(void);
void scenario_kernels(void);
void scenario_strides(void);
void scenario_modules(void);
void scenario_launch(void);
void scenario_failures(void);
void scenario_ipc(void);
void scenario_ipc_misuse(void);
void scenario_ipc_destroyed(void);
void scenario_ipc_dead(void);

/* Runs that depend on the environment: a chain of operations, of which each wait is needed; the visible
   devices, printed; work that is held from the start. */
void scenario_chain(void);
void scenario_visible(void);
void scenario_held(void);

/* Runs the child of a scenario with another process; the parent is at the other end of stdin and
   stdout. */
void child_ipc(void);
void child_ipc_misuse(void);
void child_ipc_destroyed(void);
void child_ipc_dead(void);

#endif
