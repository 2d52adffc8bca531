/* Contexts: primary contexts of devices, other contexts, and the stack of each thread. */
#include <stdlib.h>

#include "event.h"
#include "kernel.h"

enum {
    STACK_DEPTH = 64,
    API_VERSION = 3020,
};

static struct context primaries[MAX_DEVICES];

static __thread CUcontext stack[STACK_DEPTH];
static __thread int depth;

/* Returns the context of a handle even if it is inactive, or null. */
static struct context *find(CUcontext handle) { return handle_get(KIND_CONTEXT, handle); }

struct context *current_context(void) { return depth == 0 ? NULL : find(stack[depth - 1]); }

struct context *context_get(CUcontext handle)
{
    struct context *ctx = find(handle);
    if (ctx == NULL || !ctx->active) {
        misuse(CUDA_ERROR_INVALID_CONTEXT, "%p is not an active context", (void *)handle);
        return NULL;
    }
    return ctx;
}

static CUresult check_device(int device)
{
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    return device_physical(device) == config()->bad_device ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_SUCCESS;
}

/* Ends all that a context has: its streams once their work is done, events, modules and memory. */
static void clear(struct context *ctx)
{
    context_drain(ctx);
    stream_destroy_all(ctx);
    event_destroy_all(ctx);
    module_unload_all(ctx);
    memory_remove_all(ctx);
    ctx->active = false;
    ctx->peers = 0;
    ctx->failed = CUDA_SUCCESS;
}

static CUresult retain(CUcontext *handle, int device)
{
    CUresult result = check_device(device);
    if (result != CUDA_SUCCESS)
        return result;
    struct context *ctx = &primaries[device];
    if (ctx->handle == NULL) {
        ctx->handle = handle_new(KIND_CONTEXT, ctx);
        ctx->device = device;
        ctx->primary = true;
    }
    ctx->active = true;
    ctx->retained++;
    *handle = ctx->handle;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    ENTER(NEEDS_DRIVER);
    LEAVE(retain(context, device));
}

static CUresult release(int device)
{
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    struct context *ctx = &primaries[device];
    if (ctx->retained == 0)
        return misuse(CUDA_ERROR_INVALID_CONTEXT, "the primary context of device %d is not retained", device);
    if (--ctx->retained == 0)
        clear(ctx);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    ENTER(NEEDS_DRIVER);
    LEAVE(release(device));
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
    ENTER(NEEDS_DRIVER);
    if (device_valid(device)) {
        *flags = primaries[device].flags;
        *active = primaries[device].active;
    }
    LEAVE(device_valid(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE);
}

static CUresult push(CUcontext handle)
{
    if (context_get(handle) == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (depth == STACK_DEPTH)
        return misuse(CUDA_ERROR_INVALID_VALUE, "%d contexts are pushed", depth);
    stack[depth++] = handle;
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    ENTER(NEEDS_DRIVER);
    LEAVE(push(context));
}

static CUresult pop(CUcontext *handle)
{
    if (depth == 0)
        return misuse(CUDA_ERROR_INVALID_CONTEXT, "the thread has no current context");
    depth--;
    if (handle != NULL)
        *handle = stack[depth];
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    ENTER(NEEDS_DRIVER);
    LEAVE(pop(context));
}

/* Replaces the top of the stack; null removes it. */
static CUresult set_current(CUcontext handle)
{
    if (handle == NULL) {
        if (depth > 0)
            depth--;
        return CUDA_SUCCESS;
    }
    if (depth == 0)
        return push(handle);
    if (context_get(handle) == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    stack[depth - 1] = handle;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    ENTER(NEEDS_DRIVER);
    LEAVE(set_current(context));
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    ENTER(NEEDS_DRIVER);
    *context = depth == 0 ? NULL : stack[depth - 1];
    LEAVE(CUDA_SUCCESS);
}

static CUresult create(CUcontext *handle, unsigned flags, int device)
{
    CUresult result = check_device(device);
    if (result != CUDA_SUCCESS)
        return result;
    struct context *ctx = must_alloc(sizeof *ctx);
    ctx->handle = handle_new(KIND_CONTEXT, ctx);
    ctx->device = device;
    ctx->flags = flags;
    ctx->active = true;
    *handle = ctx->handle;
    return push(ctx->handle);
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
    ENTER(NEEDS_DRIVER);
    LEAVE(create(context, flags, device));
}

static CUresult destroy(CUcontext handle)
{
    struct context *ctx = context_get(handle);
    if (ctx == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (ctx->primary)
        return misuse(CUDA_ERROR_INVALID_CONTEXT, "a primary context cannot be destroyed");
    clear(ctx);
    handle_close(handle);
    free(ctx);
    if (depth > 0 && stack[depth - 1] == handle)
        depth--;
    return CUDA_SUCCESS;
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
    ENTER(NEEDS_DRIVER);
    LEAVE(destroy(context));
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    ENTER(NEEDS_CONTEXT);
    *device = current_context()->device;
    LEAVE(CUDA_SUCCESS);
}

CUresult cuCtxGetFlags(unsigned int *flags)
{
    ENTER(NEEDS_CONTEXT);
    *flags = current_context()->flags;
    LEAVE(CUDA_SUCCESS);
}

CUresult cuCtxGetApiVersion(CUcontext context, unsigned int *version)
{
    ENTER(NEEDS_DRIVER);
    struct context *ctx = context_get(context);
    *version = API_VERSION;
    LEAVE(ctx != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT);
}

static CUresult synchronize(struct context *ctx)
{
    count_blocking();
    context_drain(ctx);
    return ctx->failed;
}

CUresult cuCtxSynchronize(void)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(synchronize(current_context()));
}

static CUresult enable_peer(CUcontext handle, unsigned flags)
{
    struct context *ctx = current_context();
    struct context *peer = context_get(handle);
    if (peer == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (flags != 0)
        return misuse(CUDA_ERROR_INVALID_VALUE, "flags are %u and must be 0", flags);
    if (peer->device == ctx->device)
        return misuse(CUDA_ERROR_INVALID_DEVICE, "device %d is no peer of itself", ctx->device);
    if (!device_can_access(ctx->device, peer->device))
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    if (ctx->peers & 1u << peer->device)
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    ctx->peers |= 1u << peer->device;
    return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(enable_peer(peer, flags));
}

static CUresult disable_peer(CUcontext handle)
{
    struct context *ctx = current_context();
    struct context *peer = context_get(handle);
    if (peer == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!(ctx->peers & 1u << peer->device))
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    ctx->peers &= ~(1u << peer->device);
    return CUDA_SUCCESS;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(disable_peer(peer));
}
