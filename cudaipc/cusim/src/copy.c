/* Copies and fills. With CUSIM_DELAY_US each is late on both sides: it reads its source at its beginning
   and at its end, writes other bytes if the source has changed, and its destination has other bytes in
   between. Hence work that does not wait for a copy, or a copy that does not wait for other work,
   gives wrong bytes whichever side is early. */
#include <stdlib.h>
#include <string.h>

#include "stream.h"

struct copy_op {
    struct op op;
    char *to;
    const char *from;
    size_t bytes;
};

static void run_copy(struct op *op)
{
    struct copy_op *c = (struct copy_op *)op;
    if (!op->late) {
        memmove(c->to, c->from, c->bytes);
        return;
    }
    bool overlap = c->to < c->from + c->bytes && c->from < c->to + c->bytes;
    char *staged = must_alloc_staging(c->bytes);
    memcpy(staged, c->from, c->bytes);
    memset(c->to, POISON, c->bytes);
    pause_late(op);
    if (overlap || memcmp(staged, c->from, c->bytes) == 0)
        memcpy(c->to, staged, c->bytes);
    free(staged);
}

/* Enqueues a copy. A copy that is not asynchronous waits for it, and so does one with pageable host
   memory, which a device cannot access. */
static CUresult copy(CUdeviceptr dst, enum side dst_side, CUdeviceptr src, enum side src_side, size_t bytes,
                     CUstream stream, bool async)
{
    struct range to;
    struct range from;
    struct stream *s = stream_get(stream);
    if (s == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (bytes == 0)
        return CUDA_SUCCESS;
    CUresult result = memory_range(dst, bytes, dst_side, &to);
    if (result == CUDA_SUCCESS)
        result = memory_range(src, bytes, src_side, &from);
    if (result != CUDA_SUCCESS)
        return result;
    struct copy_op *op = must_alloc(sizeof *op);
    op->op.run = run_copy;
    op->op.moves_data = true;
    op->op.uses[0] = to.allocation;
    op->op.uses[1] = from.allocation;
    op->to = to.bytes;
    op->from = from.bytes;
    op->bytes = bytes;
    stream_enqueue(s, &op->op);
    if (async && to.allocation != NULL && from.allocation != NULL)
        return CUDA_SUCCESS;
    struct context *ctx = s->context;
    count_blocking();
    stream_drain(s);
    return ctx->failed;
}

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(copy(dst, ANY_MEMORY, src, ANY_MEMORY, bytes, NULL, false));
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(copy(dst, ANY_MEMORY, src, ANY_MEMORY, bytes, stream, true));
}

static CUresult copy_peer(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, size_t bytes,
                          CUstream stream, bool async)
{
    if (context_get(dst_context) == NULL || context_get(src_context) == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    return copy(dst, DEVICE_MEMORY, src, DEVICE_MEMORY, bytes, stream, async);
}

CUresult cuMemcpyPeer(CUdeviceptr dst, CUcontext dstContext, CUdeviceptr src, CUcontext srcContext, size_t bytes)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(copy_peer(dst, dstContext, src, srcContext, bytes, NULL, false));
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dstContext, CUdeviceptr src, CUcontext srcContext, size_t bytes,
                           CUstream stream)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(copy_peer(dst, dstContext, src, srcContext, bytes, stream, true));
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t bytes)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(copy(dst, DEVICE_MEMORY, (uintptr_t)src, HOST_MEMORY, bytes, NULL, false));
}

CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t bytes)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(copy((uintptr_t)dst, HOST_MEMORY, src, DEVICE_MEMORY, bytes, NULL, false));
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(copy(dst, DEVICE_MEMORY, src, DEVICE_MEMORY, bytes, NULL, false));
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(copy(dst, DEVICE_MEMORY, (uintptr_t)src, HOST_MEMORY, bytes, stream, true));
}

CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(copy((uintptr_t)dst, HOST_MEMORY, src, DEVICE_MEMORY, bytes, stream, true));
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(copy(dst, DEVICE_MEMORY, src, DEVICE_MEMORY, bytes, stream, true));
}

struct fill_op {
    struct op op;
    char *to;
    unsigned value;
    size_t width; /* bytes of one element, 1 or 4 */
    size_t count;
};

static void run_fill(struct op *op)
{
    struct fill_op *f = (struct fill_op *)op;
    if (op->late) {
        memset(f->to, POISON, f->count * f->width);
        pause_late(op);
    }
    if (f->width == 1) {
        memset(f->to, (int)f->value, f->count);
        return;
    }
    for (size_t i = 0; i < f->count; i++)
        memcpy(f->to + i * f->width, &f->value, f->width);
}

static CUresult fill(CUdeviceptr dst, unsigned value, size_t width, size_t count, CUstream stream, bool async)
{
    struct range to;
    struct stream *s = stream_get(stream);
    if (s == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (count == 0)
        return CUDA_SUCCESS;
    if (dst % width != 0)
        return misuse(CUDA_ERROR_INVALID_VALUE, "%#llx is not aligned to %zu bytes", dst, width);
    if (count > SIZE_MAX / width)
        return misuse(CUDA_ERROR_INVALID_VALUE, "%zu elements exceed the address space", count);
    CUresult result = memory_range(dst, count * width, DEVICE_MEMORY, &to);
    if (result != CUDA_SUCCESS)
        return result;
    struct fill_op *op = must_alloc(sizeof *op);
    op->op.run = run_fill;
    op->op.moves_data = true;
    op->op.uses[0] = to.allocation;
    op->to = to.bytes;
    op->value = value;
    op->width = width;
    op->count = count;
    stream_enqueue(s, &op->op);
    if (async)
        return CUDA_SUCCESS;
    struct context *ctx = s->context;
    count_blocking();
    stream_drain(s);
    return ctx->failed;
}

CUresult cuMemsetD8_v2(CUdeviceptr dst, unsigned char value, size_t count)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(fill(dst, value, 1, count, NULL, false));
}

CUresult cuMemsetD32_v2(CUdeviceptr dst, unsigned int value, size_t count)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(fill(dst, value, 4, count, NULL, false));
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count, CUstream stream)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(fill(dst, value, 1, count, stream, true));
}

CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned int value, size_t count, CUstream stream)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(fill(dst, value, 4, count, stream, true));
}
