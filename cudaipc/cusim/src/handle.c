/* Handles are numbers that are never used again, so that a call with the handle of a destroyed
   object is recognized. */
#include <stdlib.h>

#include "sim.h"

/* Handles begin at an address that no memory of a Go program has. */
#define HANDLE_BASE ((uintptr_t)0x750000000000)
enum { HANDLE_STEP = 16 };

struct entry {
    enum kind kind;
    void *object; /* null after handle_close */
};

static struct entry *entries;
static size_t used;
static size_t capacity;

void *handle_new(enum kind kind, void *object)
{
    if (used == capacity) {
        capacity = capacity == 0 ? 256 : 2 * capacity;
        entries = realloc(entries, capacity * sizeof *entries);
        if (entries == NULL)
            abort();
    }
    entries[used] = (struct entry){.kind = kind, .object = object};
    return (void *)(HANDLE_BASE + HANDLE_STEP * used++);
}

static struct entry *find(const void *handle)
{
    uintptr_t offset = (uintptr_t)handle - HANDLE_BASE;
    if ((uintptr_t)handle < HANDLE_BASE || offset % HANDLE_STEP != 0 || offset / HANDLE_STEP >= used)
        return NULL;
    return &entries[offset / HANDLE_STEP];
}

void *handle_get(enum kind kind, const void *handle)
{
    struct entry *e = find(handle);
    return e != NULL && e->kind == kind ? e->object : NULL;
}

void handle_close(const void *handle)
{
    struct entry *e = find(handle);
    if (e != NULL)
        e->object = NULL;
}

void handle_each(enum kind kind, void (*visit)(void *object, void *argument), void *argument)
{
    for (size_t i = 0; i < used; i++) {
        if (entries[i].kind == kind && entries[i].object != NULL)
            visit(entries[i].object, argument);
    }
}
