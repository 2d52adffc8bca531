/* What the files of the simulator share.

   One mutex, sim_mutex, guards all state. Functions that are declared here run with it locked,
   unless their comment says otherwise. The work of streams (copies, fills, kernels, waits) runs
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
    POISON = 0xa5,
};

extern pthread_mutex_t sim_mutex;
extern pthread_cond_t sim_progress; /* broadcast when an operation is done */

void sim_lock(void);
void sim_unlock(void);

/* Allocates zeroed memory, and aborts the process if there is none. */
void *must_alloc(size_t size);

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
    bool mig;                  /* CUSIM_MIG */
    bool own_handles;          /* CUSIM_OWN_HANDLES: this process can open its own handles */
    int bad_device;            /* CUSIM_BAD_DEVICE, a physical index, or -1 */
    char process[64];          /* CUSIM_PROCESS */
    char trace[4096];          /* CUSIM_TRACE, a path, or "" */
    char drop[128];            /* CUSIM_DROP, or "" */
    char fail[512];            /* CUSIM_FAIL, or "" */
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

/* ---- memory.c: allocations */

enum memory_kind {
    MEMORY_DEVICE,     /* of cuMemAlloc */
    MEMORY_IMPORTED,   /* of cuIpcOpenMemHandle */
    MEMORY_HOST,       /* of cuMemHostAlloc */
    MEMORY_REGISTERED, /* of cuMemHostRegister */
};

enum { MAX_IMPORTERS = 160 };

/* The page after the bytes of device memory, which the importing processes also map. */
struct memory_trailer {
    uint32_t magic;
    _Atomic uint32_t freed;
    uint64_t id;
    struct identity importers[MAX_IMPORTERS]; /* pid 0: free entry */
};

struct allocation {
    struct allocation *next;
    enum memory_kind kind;
    int device;
    struct context *context;
    char *address;   /* what the program uses */
    char *bytes;     /* what the simulator uses: another mapping of device memory */
    size_t size;
    size_t mapped;   /* size in full pages */
    int fd;          /* memfd of device memory, or -1 */
    uint64_t id;     /* never used again in this process */
    unsigned users;  /* the table, and operations that are not done */
    bool freed;
    struct memory_trailer *trailer; /* of device memory */
    int importer;                   /* MEMORY_IMPORTED: index in trailer->importers, or -1 */
    unsigned opened;                /* MEMORY_IMPORTED: calls of cuIpcOpenMemHandle that are not undone */
    int exporter;                   /* MEMORY_IMPORTED: its process */
    uint64_t exporter_id;           /* MEMORY_IMPORTED: its id there */
};

/* Returns the allocation that contains the address, or null. */
struct allocation *memory_find(uintptr_t address);

/* Returns the first allocation for which match returns true, or null. */
struct allocation *memory_search(bool (*match)(struct allocation *, const void *), const void *argument);

/* Adds memory of a context to the table of allocations. */
struct allocation *memory_add(enum memory_kind kind, struct context *ctx, void *address, size_t size);

/* Maps the memfd of device memory twice: bytes and trailer, and an address that cannot be accessed.
   Returns false if the system refuses. */
bool memory_map(struct allocation *a, int fd, size_t size);

/* Removes an allocation from the table. Its memory is unmapped when no operation uses it. */
void memory_remove(struct allocation *a);

/* Removes an allocation that could not be mapped. */
void memory_discard(struct allocation *a);

void memory_ref(struct allocation *a);
void memory_unref(struct allocation *a);

/* Reports whether the memory has been freed, in this process or by its exporter. */
bool memory_is_freed(const struct allocation *a);

/* Removes all allocations of a context. */
void memory_remove_all(struct context *ctx);

/* A range of memory that an operation uses. */
struct range {
    struct allocation *allocation; /* null: pageable host memory */
    char *bytes;
};

enum side { ANY_MEMORY, DEVICE_MEMORY, HOST_MEMORY };

/* Finds the memory of an operation. It reports and returns an error if the range exceeds its
   allocation, is freed or not mapped, or is not on the expected side. */
CUresult memory_range(CUdeviceptr address, size_t size, enum side side, struct range *range);

/* ---- queue.c: streams, which are queues of operations */

enum { MAX_USES = 4 };

struct op {
    struct op *next;
    struct stream *stream;
    uint64_t number;                     /* increases with each operation of the process */
    struct allocation *uses[MAX_USES];   /* memory that must not be freed before the end, or null */
    void (*run)(struct op *op);          /* called without the lock */
    void (*release)(struct op *op);      /* releases all but op itself and uses; may be null */
};

struct stream {
    struct stream *next;
    CUstream handle; /* null for default streams */
    struct context *context;
    unsigned flags;
    struct call_counter *counter;
    bool held;
    bool closing;
    struct op *first; /* the running operation, or the next one */
    bool running;     /* first has begun */
    struct op *last;
    pthread_cond_t work; /* signalled when first, held or closing change */
};

extern bool stream_hold_all; /* no operation of the process begins */

/* Creates a stream with a thread. Returns null if the system creates no more threads. */
struct stream *stream_new(struct context *ctx, unsigned flags, struct call_counter *counter);

/* Makes the handle of a stream invalid; the stream goes once its work is done. */
void stream_close(struct stream *s);

/* Returns the stream of a handle, or null after it has reported the misuse. The null handle and
   CU_STREAM_LEGACY are the default stream of the current context. */
struct stream *stream_get(CUstream handle);

/* Appends an operation, which the stream owns from then on. */
void stream_enqueue(struct stream *s, struct op *op);

/* Waits until the present operations of a stream, a context, or the process are done. The lock is
   released during the wait. */
void stream_drain(struct stream *s);
void context_drain(struct context *ctx);
void process_drain(void);

/* Destroys all streams of a context once their work is done. */
void stream_destroy_all(struct context *ctx);

/* Pauses the calling thread. It needs no lock. */
void pause_us(long us);

/* Makes the running operation late: pauses for CUSIM_DELAY_US, and then until the operations of
   other streams that can begin have begun, so that a slow machine does not hide a missing wait. It
   needs no lock. */
void pause_late(void);

/* ---- event.c */

enum { EVENT_SLOTS = 160 };

/* One record of an event: record n is in slot n % EVENT_SLOTS. */
struct event_slot {
    _Atomic uint32_t number;
    _Atomic uint32_t done; /* the number of the last completed record of this slot */
    struct identity recorder;
};

/* What processes share of an event. It fits a page. */
struct event_state {
    uint32_t magic;
    uint64_t id; /* that of the handle in the process that made the event */
    _Atomic uint32_t recorded; /* number of the last record, 0 if there is none */
    _Atomic uint32_t destroyed;
    struct event_slot slots[EVENT_SLOTS];
};

struct event {
    CUevent handle;
    struct context *context;
    unsigned flags;
    bool imported;
    unsigned users; /* the handle, and operations that are not done */
    int fd;         /* memfd of state, or -1 */
    struct event_state *state;
    struct call_counter *recorder; /* stream of the last record by this process, or null */
    uint64_t finished_ns;          /* when the last record was done */
};

enum { EVENT_MAGIC = 0x63657674 };

/* Returns the event of a handle, or null after it has reported the misuse. */
struct event *event_get(CUevent handle);

struct event *event_new(struct context *ctx, unsigned flags);
void event_destroy_all(struct context *ctx);

/* Maps the state of an event from its file, or returns null. */
struct event_state *event_map(int fd);

/* ---- trace.c: the numbered calls */

enum numbered { CALL_RECORD, CALL_WAIT, CALL_SYNC, NUMBERED_CALLS };

/* Counts the numbered calls on one stream. */
struct call_counter {
    char name[16];
    unsigned count[NUMBERED_CALLS];
};

/* Returns a new counter for a stream. It is never freed. */
struct call_counter *counter_for_stream(void);
struct call_counter *counter_for_default_stream(int device);

/* Return the counters of events that another process, or no process, has recorded. */
struct call_counter *counter_for_remote(void);
struct call_counter *counter_for_none(void);

/* Counts a call, writes it to the trace, and reports whether it must do nothing (CUSIM_DROP). */
bool call_is_dropped(enum numbered call, struct call_counter *counter);

/* ---- kernel.c and module.c */

struct kernel;
void module_unload_all(struct context *ctx);

#endif
