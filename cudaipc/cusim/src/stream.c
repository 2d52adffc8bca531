/* The functions of the driver for streams, and the control functions for one stream. */
#include "stream.h"

static CUresult create(CUstream *handle, unsigned flags)
{
    if (handle == NULL || flags > CU_STREAM_NON_BLOCKING)
        return misuse(CUDA_ERROR_INVALID_VALUE, "the flags are %#x", flags);
    struct stream *s = stream_new(current_context(), flags, counter_for_stream());
    if (s == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    s->handle = handle_new(KIND_STREAM, s);
    *handle = s->handle;
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(create(stream, flags));
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
    ENTER(NEEDS_CONTEXT);
    (void)priority; /* all are equal */
    LEAVE(create(stream, flags));
}

static CUresult destroy(CUstream handle)
{
    struct stream *s = handle_get(KIND_STREAM, handle);
    if (s == NULL)
        return misuse(CUDA_ERROR_INVALID_HANDLE, "%p is no stream that can be destroyed", (void *)handle);
    stream_close(s);
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(destroy(stream));
}

static CUresult query(CUstream handle)
{
    struct stream *s = stream_get(handle);
    if (s == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    return s->first != NULL ? CUDA_ERROR_NOT_READY : s->context->failed;
}

CUresult cuStreamQuery(CUstream stream)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(query(stream));
}

static CUresult synchronize(CUstream handle)
{
    struct stream *s = stream_get(handle);
    if (s == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    struct context *ctx = s->context;
    count_blocking();
    stream_drain(s);
    return ctx->failed;
}

CUresult cuStreamSynchronize(CUstream stream)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(synchronize(stream));
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    ENTER(NEEDS_CONTEXT);
    struct stream *s = stream_get(stream);
    if (s != NULL)
        *context = s->context->handle;
    LEAVE(s != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuStreamGetFlags(CUstream stream, unsigned int *flags)
{
    ENTER(NEEDS_CONTEXT);
    struct stream *s = stream_get(stream);
    if (s != NULL)
        *flags = s->flags;
    LEAVE(s != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuStreamGetPriority(CUstream stream, int *priority)
{
    ENTER(NEEDS_CONTEXT);
    struct stream *s = stream_get(stream);
    *priority = 0;
    LEAVE(s != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

/* A function of the program that a stream calls. */
struct host_op {
    struct op op;
    CUhostFn function;
    void *data;
};

static void run_host(struct op *op)
{
    struct host_op *h = (struct host_op *)op;
    set_in_host_function(true);
    h->function(h->data);
    set_in_host_function(false);
}

static CUresult launch_host(CUstream stream, CUhostFn function, void *data)
{
    struct stream *s = stream_get(stream);
    if (s == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (function == NULL)
        return misuse(CUDA_ERROR_INVALID_VALUE, "the function is null");
    struct host_op *op = must_alloc(sizeof *op);
    op->op.run = run_host;
    op->op.can_block = true;
    op->function = function;
    op->data = data;
    stream_enqueue(s, &op->op);
    return CUDA_SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(launch_host(stream, function, data));
}

static int set_held(CUstream handle, bool held)
{
    sim_lock();
    struct stream *s = stream_find(handle);
    if (s != NULL) {
        s->held = held;
        pthread_cond_signal(&s->work);
        pthread_cond_broadcast(&sim_progress);
    }
    sim_unlock();
    return s == NULL ? -1 : 0;
}

int cusim_hold(CUstream stream) { return set_held(stream, true); }

int cusim_release(CUstream stream) { return set_held(stream, false); }

int64_t cusim_queued(CUstream stream)
{
    int64_t count = -1;
    sim_lock();
    struct stream *s = stream_find(stream);
    if (s != NULL) {
        count = 0;
        for (struct op *op = s->first; op != NULL; op = op->next)
            count++;
    }
    sim_unlock();
    return count;
}
