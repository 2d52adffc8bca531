/* Device memory, and the table of all allocations.

   Device memory is a memfd that is mapped twice. The address that the program gets cannot be
   accessed, so that the host faults there as it does on a machine with a GPU; the simulator uses the
   other mapping. One more page, the trailer, is for the importing processes. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "stream.h"

enum { MEMORY_MAGIC = 0x636d656d };

static struct allocation *allocations;
static uint64_t last_id;
static size_t used_memory[MAX_DEVICES];

struct allocation *memory_find(uintptr_t address)
{
    for (struct allocation *a = allocations; a != NULL; a = a->next) {
        uintptr_t begin = (uintptr_t)a->address;
        if (address >= begin && address - begin < a->size)
            return a;
    }
    return NULL;
}

struct allocation *memory_search(bool (*match)(struct allocation *, const void *), const void *argument)
{
    for (struct allocation *a = allocations; a != NULL; a = a->next) {
        if (match(a, argument))
            return a;
    }
    return NULL;
}

struct allocation *memory_add(enum memory_kind kind, struct context *ctx, void *address, size_t size)
{
    struct allocation *a = must_alloc(sizeof *a);
    a->kind = kind;
    a->context = ctx;
    a->device = ctx->device;
    a->address = address;
    a->bytes = address;
    a->size = size;
    a->mapped = (size + PAGE - 1) / PAGE * PAGE;
    a->fd = -1;
    a->id = ++last_id;
    a->users = 1;
    a->next = allocations;
    allocations = a;
    return a;
}

bool memory_map(struct allocation *a, int fd, size_t size)
{
    size_t mapped = (size + PAGE - 1) / PAGE * PAGE;
    char *bytes = mmap(NULL, mapped + PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (bytes == MAP_FAILED)
        return false;
    char *address = mmap(NULL, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) {
        munmap(bytes, mapped + PAGE);
        return false;
    }
    a->address = address;
    a->bytes = bytes;
    a->size = size;
    a->mapped = mapped;
    a->fd = fd;
    a->trailer = (struct memory_trailer *)(bytes + mapped);
    return true;
}

void memory_ref(struct allocation *a) { a->users++; }

void memory_unref(struct allocation *a)
{
    if (--a->users > 0)
        return;
    if (a->trailer != NULL) {
        munmap(a->bytes, a->mapped + PAGE);
        munmap(a->address, a->mapped);
        close(a->fd);
    } else if (a->kind == MEMORY_HOST) {
        munmap(a->address, a->mapped);
    }
    free(a);
}

static void unlink_allocation(struct allocation *a)
{
    struct allocation **link = &allocations;
    while (*link != a)
        link = &(*link)->next;
    *link = a->next;
}

void memory_discard(struct allocation *a)
{
    unlink_allocation(a);
    free(a);
}

void memory_remove(struct allocation *a)
{
    unlink_allocation(a);
    a->freed = true;
    if (a->kind == MEMORY_DEVICE) {
        atomic_store(&a->trailer->freed, 1);
        used_memory[a->device] -= a->mapped;
    }
    if (a->kind == MEMORY_IMPORTED && a->importer >= 0)
        atomic_store(&a->trailer->importers[a->importer].pid, 0);
    memory_unref(a);
}

bool memory_is_freed(const struct allocation *a)
{
    return a->freed || (a->kind == MEMORY_IMPORTED && atomic_load(&a->trailer->freed));
}

static bool is_of_context(struct allocation *a, const void *ctx) { return a->context == ctx; }

void memory_remove_all(struct context *ctx)
{
    struct allocation *a;
    while ((a = memory_search(is_of_context, ctx)) != NULL)
        memory_remove(a);
}

/* Returns the first allocation of which a part is in the range, or null. */
static struct allocation *find_overlap(uintptr_t begin, size_t size)
{
    for (struct allocation *a = allocations; a != NULL; a = a->next) {
        uintptr_t from = (uintptr_t)a->address;
        if (from < begin + size && begin < from + a->size)
            return a;
    }
    return NULL;
}

/* Reports whether all pages of the range are mapped. */
static bool is_mapped(uintptr_t begin, size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = begin / page * page;
    size_t length = begin + size - first;
    unsigned char *resident = must_alloc(length / page + 1);
    bool mapped = mincore((void *)first, length, resident) == 0;
    free(resident);
    return mapped;
}

CUresult memory_range(CUdeviceptr address, size_t size, enum side side, struct range *range)
{
    uintptr_t begin = (uintptr_t)address;
    struct allocation *a = memory_find(begin);
    if (begin + size < begin)
        return misuse(CUDA_ERROR_INVALID_VALUE, "%zu bytes at %#llx exceed the address space", size, address);
    if (a == NULL && find_overlap(begin, size) != NULL)
        return misuse(CUDA_ERROR_INVALID_VALUE, "%zu bytes at %#llx begin before an allocation", size, address);
    if (a == NULL && !is_mapped(begin, size))
        return misuse(CUDA_ERROR_INVALID_VALUE, "%#llx is freed or not mapped", address);
    if (a != NULL && size > a->size - (size_t)(begin - (uintptr_t)a->address))
        return misuse(CUDA_ERROR_INVALID_VALUE, "%zu bytes at %#llx exceed the allocation of %zu bytes at %p", size,
                      address, a->size, (void *)a->address);
    if (a != NULL && memory_is_freed(a)) {
        current_context()->failed = CUDA_ERROR_ILLEGAL_ADDRESS;
        return misuse(CUDA_ERROR_ILLEGAL_ADDRESS, "process %d has freed the memory at %#llx", a->exporter, address);
    }
    bool on_device = a != NULL && (a->kind == MEMORY_DEVICE || a->kind == MEMORY_IMPORTED);
    if (side == DEVICE_MEMORY && !on_device)
        return misuse(CUDA_ERROR_INVALID_VALUE, "%#llx is not device memory", address);
    if (side == HOST_MEMORY && on_device)
        return misuse(CUDA_ERROR_INVALID_VALUE, "%#llx is not host memory", address);
    range->allocation = a;
    range->bytes = a == NULL ? (char *)begin : a->bytes + (begin - (uintptr_t)a->address);
    return CUDA_SUCCESS;
}

static CUresult allocate(CUdeviceptr *address, size_t size)
{
    struct context *ctx = current_context();
    size_t total = config()->total_memory;
    size_t used = used_memory[ctx->device];
    if (size == 0)
        return misuse(CUDA_ERROR_INVALID_VALUE, "the size is 0");
    if (size > total || (size + PAGE - 1) / PAGE * PAGE > total - used)
        return CUDA_ERROR_OUT_OF_MEMORY;
    int fd = memfd_create("cusim memory", MFD_CLOEXEC);
    if (fd < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct allocation *a = memory_add(MEMORY_DEVICE, ctx, NULL, size);
    if (ftruncate(fd, (off_t)(a->mapped + PAGE)) != 0 || !memory_map(a, fd, size)) {
        memory_discard(a);
        close(fd);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    used_memory[ctx->device] += a->mapped;
    a->pooled = config()->pool;
    memset(a->bytes, POISON, size);
    a->trailer->id = a->id;
    a->trailer->magic = MEMORY_MAGIC;
    *address = (CUdeviceptr)(uintptr_t)a->address;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(allocate(address, size));
}

/* Reports the processes that still have the memory open. */
static void report_importers(struct allocation *a)
{
    for (int i = 0; i < MAX_IMPORTERS; i++) {
        struct identity *importer = &a->trailer->importers[i];
        int pid = atomic_load(&importer->pid);
        if (pid != 0 && identity_is_alive(importer))
            misuse(CUDA_SUCCESS, "process %d has the freed memory at %p open", pid, (void *)a->address);
    }
}

/* Frees device memory once the work of its context is done. As with the real driver, memory that
   another process has open is freed too. */
static CUresult release(CUdeviceptr address)
{
    if (address == 0)
        return CUDA_SUCCESS;
    count_blocking();
    struct allocation *a = memory_find((uintptr_t)address);
    if (!config()->no_free_wait)
        context_drain(a == NULL ? current_context() : a->context);
    a = memory_find((uintptr_t)address); /* another thread may have freed it during the wait */
    if (a == NULL || a->kind != MEMORY_DEVICE || (uintptr_t)a->address != (uintptr_t)address)
        return misuse(CUDA_ERROR_INVALID_VALUE, "%#llx is not the beginning of memory of cuMemAlloc", address);
    report_importers(a);
    memory_remove(a);
    return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(release(address));
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    ENTER(NEEDS_CONTEXT);
    *total = config()->total_memory;
    *free_bytes = *total - used_memory[current_context()->device];
    LEAVE(CUDA_SUCCESS);
}
