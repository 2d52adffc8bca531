/* Events. Each record has a number; a wait is for the number of the last record before it, so that
   later records do not move it. Slots keep the records apart that are not done: record 2 may be done
   before record 1, which another stream has made. The slots are in shared memory if the event is for
   other processes. */
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "event.h"

enum { DEAD_CHECK_NS = 20 * 1000 * 1000 }; /* how often a wait checks that the recorder lives */

static struct event_slot *slot_of(struct event_state *state, uint32_t record)
{
    return &state->slots[record % EVENT_SLOTS];
}

/* Reports whether a record has a larger or equal number; numbers may overflow. */
static bool reached(uint32_t done, uint32_t record) { return (int32_t)(done - record) >= 0; }

static void complete(struct event_slot *slot, uint32_t record)
{
    atomic_store(&slot->done, record);
    syscall(SYS_futex, &slot->done, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Completes a record whose process has ended, which the real driver would never do, so that a test
   does not block. Returns false if the process lives. */
static bool complete_if_dead(struct event_slot *slot, uint32_t record)
{
    if (atomic_load(&slot->number) != record || identity_is_self(&slot->recorder) ||
        identity_is_alive(&slot->recorder))
        return false;
    fprintf(stderr, "cusim: process %d ended before an event that it recorded was done; the event is released\n",
            atomic_load(&slot->recorder.pid));
    complete(slot, record);
    return true;
}

static bool is_done(struct event_state *state, uint32_t record)
{
    struct event_slot *slot = slot_of(state, record);
    return record == 0 || reached(atomic_load(&slot->done), record) || complete_if_dead(slot, record);
}

/* Waits until a record is done, without the lock. */
static void wait_for(struct event_state *state, uint32_t record)
{
    struct event_slot *slot = slot_of(state, record);
    struct timespec limit = {0, DEAD_CHECK_NS};
    while (record != 0) {
        uint32_t done = atomic_load(&slot->done);
        if (reached(done, record))
            return;
        syscall(SYS_futex, &slot->done, FUTEX_WAIT, done, &limit, NULL, 0);
        complete_if_dead(slot, record);
    }
}

static void unref(struct event *e)
{
    if (--e->users > 0)
        return;
    if (e->fd >= 0) {
        munmap(e->state, sizeof *e->state);
        close(e->fd);
    } else {
        free(e->state);
    }
    free(e);
}

struct event *event_get(CUevent handle)
{
    struct event *e = handle_get(KIND_EVENT, handle);
    if (e == NULL) {
        misuse(CUDA_ERROR_INVALID_HANDLE, "%p is no event", (void *)handle);
        return NULL;
    }
    if (e->imported && atomic_load(&e->state->destroyed)) {
        misuse(CUDA_ERROR_INVALID_HANDLE, "the process that made event %p has destroyed it", (void *)handle);
        return NULL;
    }
    return e;
}

struct event *event_new(struct context *ctx, unsigned flags)
{
    struct event *e = must_alloc(sizeof *e);
    e->handle = handle_new(KIND_EVENT, e);
    e->context = ctx;
    e->flags = flags;
    e->users = 1;
    e->fd = -1;
    return e;
}

struct event_state *event_map(int fd)
{
    struct event_state *state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return state == MAP_FAILED ? NULL : state;
}

/* Returns the state of an event for other processes, and its file, or null. */
static struct event_state *new_shared_state(int *fd)
{
    *fd = memfd_create("cusim event", MFD_CLOEXEC);
    if (*fd < 0)
        return NULL;
    struct event_state *state = NULL;
    if (ftruncate(*fd, sizeof *state) == 0)
        state = event_map(*fd);
    if (state == NULL)
        close(*fd);
    return state;
}

static CUresult create(CUevent *handle, unsigned flags)
{
    const unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    bool shared = flags & CU_EVENT_INTERPROCESS;
    int fd = -1;
    if (handle == NULL || (flags & ~known) != 0)
        return misuse(CUDA_ERROR_INVALID_VALUE, "the flags are %#x", flags);
    if (shared && !(flags & CU_EVENT_DISABLE_TIMING))
        return misuse(CUDA_ERROR_INVALID_VALUE, "CU_EVENT_INTERPROCESS needs CU_EVENT_DISABLE_TIMING");
    struct event_state *state = shared ? new_shared_state(&fd) : must_alloc(sizeof *state);
    if (state == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct event *e = event_new(current_context(), flags);
    state->magic = EVENT_MAGIC;
    state->id = (uintptr_t)e->handle;
    e->fd = fd;
    e->state = state;
    *handle = e->handle;
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(create(event, flags));
}

/* Ends the handle of an event. Operations that wait for it go on to do so. */
static void destroy(struct event *e)
{
    if (!e->imported)
        atomic_store(&e->state->destroyed, 1);
    handle_close(e->handle);
    unref(e);
}

static void destroy_if_of_context(void *event, void *ctx)
{
    struct event *e = event;
    if (e->context == ctx)
        destroy(e);
}

void event_destroy_all(struct context *ctx) { handle_each(KIND_EVENT, destroy_if_of_context, ctx); }

/* An imported event that its process has destroyed can still be destroyed here. */
static CUresult destroy_handle(CUevent handle)
{
    struct event *e = handle_get(KIND_EVENT, handle);
    if (e == NULL)
        return misuse(CUDA_ERROR_INVALID_HANDLE, "%p is no event", (void *)handle);
    destroy(e);
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(destroy_handle(event));
}

/* An operation on one record of an event. */
struct event_op {
    struct op op;
    struct event *event;
    uint32_t record;
};

static void release_event(struct op *op) { unref(((struct event_op *)op)->event); }

static void run_wait(struct op *op)
{
    struct event_op *w = (struct event_op *)op;
    wait_for(w->event->state, w->record);
}

static void enqueue(struct stream *s, struct event *e, uint32_t record, void (*run)(struct op *))
{
    struct event_op *op = must_alloc(sizeof *op);
    op->op.run = run;
    op->op.can_block = run == run_wait;
    op->op.release = release_event;
    op->event = e;
    op->record = record;
    e->users++;
    stream_enqueue(s, &op->op);
}

static void run_record(struct op *op)
{
    struct event_op *r = (struct event_op *)op;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    sim_lock();
    if (r->record == atomic_load(&r->event->state->recorded))
        r->event->finished_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    sim_unlock();
    complete(slot_of(r->event->state, r->record), r->record);
}

static CUresult record(CUevent event, CUstream stream)
{
    struct event *e = event_get(event);
    struct stream *s = stream_get(stream);
    if (e == NULL || s == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (e->context != s->context)
        return misuse(CUDA_ERROR_INVALID_HANDLE, "the event and the stream are of different contexts");
    bool dropped = call_is_dropped(CALL_RECORD, s->counter);
    struct event_slot *slot = slot_of(e->state, atomic_load(&e->state->recorded) + 1);
    if (!is_done(e->state, atomic_load(&slot->number))) {
        fprintf(stderr, "cusim: more than %d records of an event are not done\n", EVENT_SLOTS);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    uint32_t number = atomic_fetch_add(&e->state->recorded, 1) + 1; /* another process may record too */
    slot = slot_of(e->state, number);
    identity_set_self(&slot->recorder);
    atomic_store(&slot->number, number);
    e->recorder = s->counter;
    if (dropped) /* an earlier record would hide that */
        complete(slot, number);
    else
        enqueue(s, e, number, run_record);
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(record(event, stream));
}

static CUresult stream_wait(CUstream stream, CUevent event, unsigned flags)
{
    struct event *e = event_get(event);
    struct stream *s = stream_get(stream);
    if (e == NULL || s == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (flags != 0)
        return misuse(CUDA_ERROR_INVALID_VALUE, "flags are %u and must be 0", flags);
    if (call_is_dropped(CALL_WAIT, s->counter))
        return CUDA_SUCCESS;
    enqueue(s, e, atomic_load(&e->state->recorded), run_wait);
    return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(stream_wait(stream, event, flags));
}

static CUresult query(CUevent event)
{
    struct event *e = event_get(event);
    if (e == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    return is_done(e->state, atomic_load(&e->state->recorded)) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventQuery(CUevent event)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(query(event));
}

/* Returns the counter of the stream that made a record of an event. */
static struct call_counter *recorder_of(struct event *e, uint32_t record)
{
    if (record == 0)
        return counter_for_none();
    bool own = e->recorder != NULL && identity_is_self(&slot_of(e->state, record)->recorder);
    return own ? e->recorder : counter_for_remote();
}

static CUresult synchronize(CUevent event)
{
    struct event *e = event_get(event);
    if (e == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    uint32_t record = atomic_load(&e->state->recorded);
    count_blocking();
    if (call_is_dropped(CALL_SYNC, recorder_of(e, record)))
        return CUDA_SUCCESS;
    e->users++;
    sim_unlock();
    wait_for(e->state, record);
    sim_lock();
    unref(e);
    return CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent event)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(synchronize(event));
}

static CUresult elapsed(float *milliseconds, CUevent start, CUevent end)
{
    struct event *a = event_get(start);
    struct event *b = event_get(end);
    if (a == NULL || b == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    uint32_t from = atomic_load(&a->state->recorded);
    uint32_t to = atomic_load(&b->state->recorded);
    if (((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING) || from == 0 || to == 0)
        return misuse(CUDA_ERROR_INVALID_HANDLE, "an event has no timing, or was never recorded");
    if (!is_done(a->state, from) || !is_done(b->state, to))
        return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)((double)(int64_t)(b->finished_ns - a->finished_ns) / 1e6);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(elapsed(milliseconds, start, end));
}
