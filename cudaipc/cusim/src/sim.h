/* The state that all files of the simulator share, and what each call of the driver needs.

   One mutex, sim_mutex, guards all state. The functions of the headers run with it locked, unless
   their comments exempt them. The work of streams (copies, fills, kernels, waits) runs
   without it, on one thread for each stream. */
#ifndef CUSIM_SIM_H
#define CUSIM_SIM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "cusim.h"

enum {
    MAX_DEVICES = 16,
    PAGE = 4096,
    POISON = 0xd7,
};

extern pthread_mutex_t sim_mutex;
extern pthread_cond_t sim_progress; /* broadcast when an operation is done */

void sim_lock(void);
void sim_unlock(void);

/* Allocates zeroed memory, and aborts the process if there is none. */
void *must_alloc(size_t size);

/* Returns undefined memory for bytes of tensors that are kept for a moment. Large pages make it fast: most of
   the time of a large copy would be faults. */
void *must_alloc_staging(size_t size);

/* ---- call.c: entering and leaving the functions of the driver */

enum need {
    NEEDS_NOTHING, /* works before cuInit */
    NEEDS_DRIVER,  /* needs cuInit */
    NEEDS_CONTEXT, /* needs a current context that has not failed */
};

/* Counts a call of a function and locks sim_mutex. If the call must fail, because of CUSIM_FAIL or
   because of a missing need, it unlocks and returns the error. */
CUresult call_begin(const char *function, enum need need);

/* ENTER begins a function of the driver, LEAVE ends it with a result that is computed under the
   lock. */
#define ENTER(need)                                        \
    do {                                                   \
        CUresult entered = call_begin(__func__, need);     \
        if (entered != CUDA_SUCCESS)                       \
            return entered;                                \
    } while (0)

#define LEAVE(result)                  \
    do {                               \
        CUresult leaving = (result);   \
        sim_unlock();                  \
        return leaving;                \
    } while (0)

/* Counts the present call as one that waits for a device. */
void count_blocking(void);

/* Reports a misuse by the present call on standard error, counts it, and returns result. */
CUresult misuse(CUresult result, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Marks this thread as one that runs a host function, in which no call of the driver is allowed. It
   needs no lock. */
void set_in_host_function(bool in);

/* Counts and reports a call of a function that the simulator lacks, and returns
   CUDA_ERROR_NOT_SUPPORTED. The stubs call it, which the build generates from stubs.txt. It locks
   sim_mutex. */
CUresult cusim_not_simulated(const char *function);

/* Names the operation that this thread runs in later reports of misuse. */
void set_call_name(const char *name);

/* ---- config.c: options */

struct config {
    int devices;               /* CUSIM_DEVICES */
    char visible[256];         /* CUDA_VISIBLE_DEVICES; "all" if it is not set */
    size_t total_memory;       /* CUSIM_TOTAL_MEM, of each device */
    _Atomic long delay_us;     /* CUSIM_DELAY_US */
    bool no_device;            /* CUSIM_NO_DEVICE */
    bool no_peer;              /* CUSIM_NO_P2P */
    bool no_ipc;               /* CUSIM_NO_IPC */
    bool pool;                 /* CUSIM_POOL: memory that is allocated now has no handles */
    bool mig;                  /* CUSIM_MIG */
    bool no_free_wait;         /* CUSIM_NO_FREE_WAIT: calls that release memory do not wait */
    bool own_handles;          /* CUSIM_OWN_HANDLES: this process can open its own handles */
    int bad_device;            /* CUSIM_BAD_DEVICE, a physical index, or -1 */
    char process[64];          /* CUSIM_PROCESS */
    char trace[4096];          /* CUSIM_TRACE, a path, or "" */
    char drop[128];            /* CUSIM_DROP, or "" */
    char fail[512];            /* CUSIM_FAIL, or "" */
    int kill;                  /* CUSIM_KILL, the number of a call, or 0 */
};

/* Returns the options. The first call reads the environment. */
struct config *config(void);

/* Returns the error with which the nth call of a function must fail (CUSIM_FAIL), or CUDA_SUCCESS. */
CUresult injected_failure(const char *function, uint64_t nth);

/* ---- handle.c: handles, which are numbers that are never used again */

enum kind {
    KIND_CONTEXT = 1,
    KIND_STREAM,
    KIND_EVENT,
    KIND_MODULE,
    KIND_FUNCTION,
};

/* Returns a new handle for an object. */
void *handle_new(enum kind kind, void *object);

/* Returns the object of a handle, or null if the handle is unknown, of another kind, or closed. */
void *handle_get(enum kind kind, const void *handle);

/* Makes a handle invalid. */
void handle_close(const void *handle);

/* Calls visit for each open handle of a kind. visit may close that handle. */
void handle_each(enum kind kind, void (*visit)(void *object, void *argument), void *argument);

/* ---- process.c: identities of processes, which differ even if a number is used again */

struct identity {
    _Atomic int pid;
    _Atomic uint64_t start; /* when the process began, in ticks since the machine began */
};

/* Sets id to the calling process. It needs no lock. */
void identity_set_self(struct identity *id);

bool identity_is_self(const struct identity *id);

/* Reports whether the process has not ended. It needs no lock. */
bool identity_is_alive(const struct identity *id);

/* Opens the file that a process has open as fd, and returns the new descriptor or -1. */
int open_file_of(int pid, int fd);

/* ---- device.c */

/* Returns the number of visible devices, 0 before cuInit. */
int device_count(void);

/* Returns the physical index of a visible device. */
int device_physical(int device);

/* Returns the index of the visible device with a physical index, or -1 if it is not visible. */
int device_from_physical(int physical);

bool device_valid(int device);

/* Reports whether work on a device can access memory of another one. */
bool device_can_access(int device, int peer);

/* ---- context.c */

struct context {
    CUcontext handle;
    int device;
    bool primary;
    bool active;
    unsigned retained; /* calls of cuDevicePrimaryCtxRetain that are not undone */
    unsigned flags;
    unsigned peers;    /* bit i: kernels may access memory of device i */
    CUresult failed;   /* error that all later calls return, or CUDA_SUCCESS */
    struct stream *default_stream;
};

/* Returns the current context of the calling thread, or null. It may be inactive. */
struct context *current_context(void);

/* Returns the active context of a handle, or null after it has reported the misuse. */
struct context *context_get(CUcontext handle);

#endif
