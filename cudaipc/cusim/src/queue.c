/* The queues of streams. Each stream has a thread that runs its operations in order, and outlives its
   handle until its work is done. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "stream.h"

static struct stream *streams; /* all that have a thread */
static uint64_t last_number;   /* of operations */
static bool hold_all;          /* no operation of the process begins */

void pause_us(long us)
{
    struct timespec left = {us / 1000000, us % 1000000 * 1000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        continue;
}

/* Reports whether a stream has an operation with a number up to last that can proceed now: it is
   neither held, nor late, nor may it wait for something. */
static bool can_proceed(uint64_t last)
{
    for (struct stream *s = streams; s != NULL; s = s->next) {
        bool held = !s->running && (s->held || hold_all);
        if (s->first != NULL && s->first->number <= last && !s->resting && !held)
            return true;
    }
    return false;
}

static void set_resting(struct stream *s)
{
    s->resting = true;
    pthread_cond_broadcast(&sim_progress);
}

void pause_late(struct op *op)
{
    sim_lock();
    set_resting(op->stream);
    sim_unlock();
    pause_us(config()->delay_us);
    sim_lock();
    uint64_t last = last_number;
    while (can_proceed(last))
        pthread_cond_wait(&sim_progress, &sim_mutex);
    sim_unlock();
}

/* Reports whether the memory of an operation is still there. If not, the context of its stream
   fails, as that of a device that accesses an illegal address. */
static bool check_uses(struct op *op)
{
    for (int i = 0; i < MAX_USES; i++) {
        struct allocation *a = op->uses[i];
        if (a == NULL || !memory_is_freed(a))
            continue;
        op->stream->context->failed = CUDA_ERROR_ILLEGAL_ADDRESS;
        misuse(CUDA_ERROR_ILLEGAL_ADDRESS, "the memory at %p was freed before the operation was done",
               (void *)a->address);
        return false;
    }
    return true;
}

static void free_op(struct op *op)
{
    for (int i = 0; i < MAX_USES; i++) {
        if (op->uses[i] != NULL)
            memory_unref(op->uses[i]);
    }
    if (op->release != NULL)
        op->release(op);
    free(op);
}

static void remove_stream(struct stream *s)
{
    struct stream **link = &streams;
    while (*link != s)
        link = &(*link)->next;
    *link = s->next;
    pthread_cond_destroy(&s->work);
    free(s);
}

/* Runs the operations of a stream until it is closed and empty. */
static void *run_stream(void *argument)
{
    struct stream *s = argument;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    set_call_name("work of a stream");
    sim_lock();
    for (;;) {
        while (s->first == NULL ? !s->closing : s->held || hold_all)
            pthread_cond_wait(&s->work, &sim_mutex);
        struct op *op = s->first;
        if (op == NULL)
            break;
        s->running = true;
        if (op->can_block)
            set_resting(s);
        op->late = op->moves_data && config()->delay_us != 0;
        if (check_uses(op)) {
            sim_unlock();
            op->run(op);
            sim_lock();
            check_uses(op);
        }
        s->running = false;
        s->resting = false;
        s->first = op->next;
        free_op(op);
        pthread_cond_broadcast(&sim_progress);
    }
    remove_stream(s);
    pthread_cond_broadcast(&sim_progress);
    sim_unlock();
    return NULL;
}

struct stream *stream_new(struct context *ctx, unsigned flags, struct call_counter *counter)
{
    struct stream *s = must_alloc(sizeof *s);
    pthread_t thread;
    pthread_cond_init(&s->work, NULL);
    s->context = ctx;
    s->flags = flags;
    s->counter = counter;
    if (pthread_create(&thread, NULL, run_stream, s) != 0) {
        pthread_cond_destroy(&s->work);
        free(s);
        return NULL;
    }
    pthread_detach(thread);
    s->next = streams;
    streams = s;
    return s;
}

/* Returns the default stream of a context, which it creates at first. */
static struct stream *default_stream(struct context *ctx)
{
    if (ctx->default_stream == NULL)
        ctx->default_stream = stream_new(ctx, CU_STREAM_DEFAULT, counter_for_default_stream(ctx->device));
    if (ctx->default_stream == NULL)
        fprintf(stderr, "cusim: the system creates no more threads\n");
    return ctx->default_stream;
}

struct stream *stream_get(CUstream handle)
{
    if (handle == NULL || handle == CU_STREAM_LEGACY)
        return default_stream(current_context());
    struct stream *s = handle_get(KIND_STREAM, handle);
    if (s == NULL)
        misuse(CUDA_ERROR_INVALID_HANDLE, "%p is no stream", (void *)handle);
    return s;
}

static void append(struct stream *s, struct op *op)
{
    op->stream = s;
    op->number = ++last_number;
    op->next = NULL;
    if (s->first == NULL)
        s->first = op;
    else
        s->last->next = op;
    s->last = op;
    for (int i = 0; i < MAX_USES; i++) {
        if (op->uses[i] != NULL)
            memory_ref(op->uses[i]);
    }
    pthread_cond_signal(&s->work);
}

/* An operation that waits until another stream has done those with numbers up to last. */
struct after_op {
    struct op op;
    struct stream *other;
    uint64_t last;
};

/* Reports whether a stream, which may be gone, has an operation with a number up to last. */
static bool is_busy(const struct stream *s, uint64_t last)
{
    for (const struct stream *t = streams; t != NULL; t = t->next) {
        if (t == s)
            return s->first != NULL && s->first->number <= last;
    }
    return false;
}

static void run_after(struct op *op)
{
    struct after_op *after = (struct after_op *)op;
    sim_lock();
    while (is_busy(after->other, after->last))
        pthread_cond_wait(&sim_progress, &sim_mutex);
    sim_unlock();
}

/* Delays later operations of s until the present ones of another stream are done. */
static void order_after(struct stream *s, struct stream *other)
{
    if (other->first == NULL)
        return;
    struct after_op *after = must_alloc(sizeof *after);
    after->op.run = run_after;
    after->op.can_block = true;
    after->other = other;
    after->last = last_number;
    append(s, &after->op);
}

/* The default stream and the streams without CU_STREAM_NON_BLOCKING wait for each other. */
void stream_enqueue(struct stream *s, struct op *op)
{
    struct stream *own_default = s->context->default_stream;
    if (s == own_default) {
        for (struct stream *t = streams; t != NULL; t = t->next) {
            if (t != s && t->context == s->context && !(t->flags & CU_STREAM_NON_BLOCKING))
                order_after(s, t);
        }
    } else if (own_default != NULL && !(s->flags & CU_STREAM_NON_BLOCKING)) {
        order_after(s, own_default);
    }
    append(s, op);
}

void stream_drain(struct stream *s)
{
    uint64_t last = last_number;
    while (is_busy(s, last))
        pthread_cond_wait(&sim_progress, &sim_mutex);
}

/* Waits for the present operations of a context, or of all if ctx is null. */
static void drain(const struct context *ctx)
{
    uint64_t last = last_number;
    struct stream *s = streams;
    while (s != NULL) {
        if ((ctx == NULL || s->context == ctx) && is_busy(s, last)) {
            pthread_cond_wait(&sim_progress, &sim_mutex);
            s = streams; /* it may have changed */
        } else {
            s = s->next;
        }
    }
}

void context_drain(struct context *ctx) { drain(ctx); }

void process_drain(void) { drain(NULL); }

void stream_close(struct stream *s)
{
    s->closing = true;
    handle_close(s->handle);
    pthread_cond_signal(&s->work);
}

/* Reports whether a context has a stream with a thread. */
static bool has_streams(const struct context *ctx)
{
    for (struct stream *s = streams; s != NULL; s = s->next) {
        if (s->context == ctx)
            return true;
    }
    return false;
}

void stream_destroy_all(struct context *ctx)
{
    for (struct stream *s = streams; s != NULL; s = s->next) {
        if (s->context == ctx)
            stream_close(s);
    }
    ctx->default_stream = NULL;
    while (has_streams(ctx))
        pthread_cond_wait(&sim_progress, &sim_mutex);
}

void stream_set_hold_all(bool hold)
{
    hold_all = hold;
    for (struct stream *s = streams; s != NULL; s = s->next) {
        if (!hold)
            s->held = false;
        pthread_cond_signal(&s->work);
    }
    pthread_cond_broadcast(&sim_progress);
}

/* Reads the options first, which would set CUSIM_HOLD later. */
static void lock_and_set_hold_all(bool hold)
{
    sim_lock();
    config();
    stream_set_hold_all(hold);
    sim_unlock();
}

void cusim_hold_all(void) { lock_and_set_hold_all(true); }

void cusim_release_all(void) { lock_and_set_hold_all(false); }

struct stream *stream_find(CUstream handle)
{
    struct context *ctx = current_context();
    if (handle == NULL || handle == CU_STREAM_LEGACY)
        return ctx == NULL || !ctx->active ? NULL : default_stream(ctx);
    for (struct stream *s = streams; s != NULL; s = s->next) {
        if (s->handle == handle)
            return s;
    }
    return NULL;
}
