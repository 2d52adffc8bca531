/* Allocations of device and host memory. */
#ifndef CUSIM_MEMORY_H
#define CUSIM_MEMORY_H

#include "sim.h"

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
    bool pooled;     /* MEMORY_DEVICE: it has no handles, as memory of a pool */
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

#endif
