/* Events, whose state several processes can share. */
#ifndef CUSIM_EVENT_H
#define CUSIM_EVENT_H

#include "stream.h"

enum { EVENT_SLOTS = 160 };

/* One record of an event: record n is in slot n % EVENT_SLOTS. */
struct event_slot {
    _Atomic uint32_t number;
    _Atomic uint32_t done; /* the number of the last completed record of this slot */
    struct identity recorder;
};

/* What processes share of an event. It fits a page. */
struct event_state {
    uint32_t magic;
    uint64_t id; /* that of the handle in the process that made the event */
    _Atomic uint32_t recorded; /* number of the last record, 0 if there is none */
    _Atomic uint32_t destroyed;
    struct event_slot slots[EVENT_SLOTS];
};

struct event {
    CUevent handle;
    struct context *context;
    unsigned flags;
    bool imported;
    unsigned users; /* the handle, and operations that are not done */
    int fd;         /* memfd of state, or -1 */
    struct event_state *state;
    struct call_counter *recorder; /* stream of the last record by this process, or null */
    uint64_t finished_ns;          /* when the last record was done */
};

enum { EVENT_MAGIC = 0x63657674 };

/* Returns the event of a handle, or null after it has reported the misuse. */
struct event *event_get(CUevent handle);

struct event *event_new(struct context *ctx, unsigned flags);
void event_destroy_all(struct context *ctx);

/* Maps the state of an event from its file, or returns null. */
struct event_state *event_map(int fd);

#endif
