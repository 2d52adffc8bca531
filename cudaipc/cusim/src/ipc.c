/* Memory and events of other processes. A handle names a process and one of its descriptors, through
   which other processes open the memfd; the identity of the object in the memfd recognizes a
   descriptor that has another file by now. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "event.h"

enum {
    MEMORY_HANDLE = 0x636d6831,
    EVENT_HANDLE = 0x63656831,
};

/* The content of a handle. */
struct content {
    uint32_t magic;
    int pid;
    int fd;
    int physical; /* device */
    uint64_t size;
    uint64_t id;
};

_Static_assert(sizeof(struct content) <= sizeof(CUipcMemHandle), "the content fits a handle");
_Static_assert(sizeof(struct event_state) <= PAGE, "the state of an event fits a page");
_Static_assert(sizeof(struct memory_trailer) <= PAGE, "the trailer of memory fits a page");

static CUresult get_memory(CUipcMemHandle *handle, CUdeviceptr address)
{
    struct allocation *a = memory_find((uintptr_t)address);
    if (a == NULL || a->kind != MEMORY_DEVICE)
        return misuse(CUDA_ERROR_INVALID_VALUE, "%#llx is no memory of cuMemAlloc", address);
    if (a->pooled)
        return misuse(CUDA_ERROR_INVALID_VALUE, "%#llx is memory of a pool", address);
    if (config()->no_ipc)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct content c = {
        .magic = MEMORY_HANDLE,
        .pid = getpid(),
        .fd = a->fd,
        .physical = device_physical(a->device),
        .size = a->size,
        .id = a->id,
    };
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &c, sizeof c);
    return CUDA_SUCCESS;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(get_memory(handle, address));
}

/* Reports whether a is the opened memory of a handle. The context is checked by open_memory. */
static bool is_import_of(struct allocation *a, const void *content)
{
    const struct content *c = content;
    return a->kind == MEMORY_IMPORTED && a->exporter == c->pid && a->exporter_id == c->id &&
           a->context == current_context();
}

/* Enters this process in the list of importers. Returns the index, or -1 if the list is full. */
static int add_importer(struct memory_trailer *trailer)
{
    for (int i = 0; i < MAX_IMPORTERS; i++) {
        int free_entry = 0;
        if (atomic_compare_exchange_strong(&trailer->importers[i].pid, &free_entry, getpid())) {
            identity_set_self(&trailer->importers[i]);
            return i;
        }
    }
    return -1;
}

/* Maps the memory of a handle, or returns null if it is gone. */
static struct allocation *import(const struct content *c, int device)
{
    int fd = open_file_of(c->pid, c->fd);
    if (fd < 0)
        return NULL;
    off_t length = lseek(fd, 0, SEEK_END);
    struct allocation *a = memory_add(MEMORY_IMPORTED, current_context(), NULL, c->size);
    bool mapped = length == (off_t)(a->mapped + PAGE) && memory_map(a, fd, c->size);
    a->device = device;
    a->opened = 1;
    a->exporter = c->pid;
    a->exporter_id = c->id;
    if (!mapped) {
        close(fd);
        memory_discard(a);
        return NULL;
    }
    a->importer = -1;
    if (a->trailer->id == c->id && !atomic_load(&a->trailer->freed))
        a->importer = add_importer(a->trailer);
    if (a->importer < 0) {
        memory_remove(a);
        return NULL;
    }
    return a;
}

static CUresult open_memory(CUdeviceptr *address, const CUipcMemHandle *handle, unsigned flags)
{
    struct content c;
    struct context *ctx = current_context();
    memcpy(&c, handle, sizeof c);
    if (c.magic != MEMORY_HANDLE || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return misuse(CUDA_ERROR_INVALID_VALUE, "no handle of memory, or flags %#x", flags);
    if (c.pid == getpid() && !config()->own_handles)
        return misuse(CUDA_ERROR_INVALID_CONTEXT, "the handle is of the same process");
    struct allocation *a = memory_search(is_import_of, &c);
    if (a != NULL) {
        a->opened++;
        *address = (uintptr_t)a->address;
        return CUDA_SUCCESS;
    }
    int device = device_from_physical(c.physical);
    if (device < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    if (device != ctx->device && !device_can_access(ctx->device, device))
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    a = import(&c, device);
    if (a == NULL)
        return CUDA_ERROR_MAP_FAILED;
    *address = (uintptr_t)a->address;
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(open_memory(address, &handle, flags));
}

/* Returns the opened memory that begins at an address, or null. */
static struct allocation *find_import(CUdeviceptr address)
{
    struct allocation *a = memory_find((uintptr_t)address);
    bool ok = a != NULL && a->kind == MEMORY_IMPORTED && (uintptr_t)a->address == (uintptr_t)address;
    return ok ? a : NULL;
}

static CUresult close_memory(CUdeviceptr address)
{
    struct allocation *a = find_import(address);
    count_blocking();
    if (!config()->no_free_wait)
        context_drain(a == NULL ? current_context() : a->context);
    a = find_import(address); /* another thread may have closed it during the wait */
    if (a == NULL)
        return misuse(CUDA_ERROR_INVALID_VALUE, "%#llx is not the beginning of opened memory", address);
    if (--a->opened == 0)
        memory_remove(a);
    return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(close_memory(address));
}

static CUresult get_event(CUipcEventHandle *handle, CUevent event)
{
    struct event *e = event_get(event);
    if (e == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!(e->flags & CU_EVENT_INTERPROCESS) || e->imported)
        return misuse(CUDA_ERROR_INVALID_HANDLE, "the event lacks CU_EVENT_INTERPROCESS, or is of another process");
    if (config()->no_ipc)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct content c = {
        .magic = EVENT_HANDLE,
        .pid = getpid(),
        .fd = e->fd,
        .physical = device_physical(e->context->device),
        .id = e->state->id,
    };
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &c, sizeof c);
    return CUDA_SUCCESS;
}

CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(get_event(handle, event));
}

/* Maps the state of an event of another process. Returns null if it is gone. */
static struct event_state *import_state(const struct content *c, int *fd)
{
    *fd = open_file_of(c->pid, c->fd);
    if (*fd < 0)
        return NULL;
    struct event_state *state = NULL;
    if (lseek(*fd, 0, SEEK_END) == (off_t)sizeof *state)
        state = event_map(*fd);
    if (state != NULL && (state->magic != EVENT_MAGIC || state->id != c->id || atomic_load(&state->destroyed))) {
        munmap(state, sizeof *state);
        state = NULL;
    }
    if (state == NULL)
        close(*fd);
    return state;
}

static CUresult open_event(CUevent *event, const CUipcEventHandle *handle)
{
    struct content c;
    int fd;
    memcpy(&c, handle, sizeof c);
    if (c.magic != EVENT_HANDLE)
        return misuse(CUDA_ERROR_INVALID_VALUE, "no handle of an event");
    if (c.pid == getpid() && !config()->own_handles)
        return misuse(CUDA_ERROR_INVALID_CONTEXT, "the handle is of the same process");
    struct event_state *state = import_state(&c, &fd);
    if (state == NULL)
        return CUDA_ERROR_MAP_FAILED;
    struct event *e = event_new(current_context(), CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
    e->imported = true;
    e->fd = fd;
    e->state = state;
    *event = e->handle;
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(open_event(event, &handle));
}
