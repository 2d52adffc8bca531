/* Streams, which are queues of operations, and their numbered calls. */
#ifndef CUSIM_STREAM_H
#define CUSIM_STREAM_H

#include "memory.h"

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


enum { MAX_USES = 4 };

struct op {
    struct op *next;
    struct stream *stream;
    uint64_t number;                     /* increases with each operation of the process */
    struct allocation *uses[MAX_USES];   /* memory that must not be freed before the end, or null */
    bool moves_data;                     /* it is late with CUSIM_DELAY_US, and calls pause_late then */
    bool can_block;                      /* it waits for something that may take any time */
    bool late;                           /* set when it begins: it must call pause_late */
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
    struct op *last;  /* undefined if first is null */
    bool running; /* first has begun */
    bool resting; /* first has begun, and has called pause_late or can block */
    pthread_cond_t work; /* signalled when first, held or closing change */
};

/* Holds back all operations that have not begun, or ends that and each hold of one stream. */
void stream_set_hold_all(bool hold);

/* Creates a stream with a thread. Returns null if the system creates no more threads. */
struct stream *stream_new(struct context *ctx, unsigned flags, struct call_counter *counter);

/* Makes the handle of a stream invalid; the stream goes once its work is done. */
void stream_close(struct stream *s);

/* Returns the stream of a handle, or null after it has reported the misuse. The null handle and
   CU_STREAM_LEGACY are the default stream of the current context. */
struct stream *stream_get(CUstream handle);

/* Returns the stream of a handle, which may be destroyed with work left, or null. The null handle is
   the default stream of the current context. */
struct stream *stream_find(CUstream handle);

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

/* Makes an operation late: pauses for CUSIM_DELAY_US, and then until no other stream can proceed
   without waiting for something, so that a slow machine does not hide a missing wait. The thread of
   the stream calls it, without the lock, between the early and the late part of the operation. */
void pause_late(struct op *op);

#endif
