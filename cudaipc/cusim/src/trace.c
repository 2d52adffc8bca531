/* The numbered calls: cuEventRecord, cuStreamWaitEvent and cuEventSynchronize, counted for each
   stream, so that two runs give a call the same number even if their threads interleave differently.
   A call is named by a line such as "worker1 record s2 5": process, call, stream, number. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "stream.h"

static const char *const call_names[NUMBERED_CALLS] = {"record", "wait", "sync"};

static struct call_counter remote = {.name = "remote"};
static struct call_counter none = {.name = "none"};

/* All counters of streams, so that none is lost when its stream is destroyed. */
static struct counter_list {
    struct counter_list *next;
    struct call_counter counter;
} *counters;

static struct call_counter *new_counter(void)
{
    struct counter_list *entry = must_alloc(sizeof *entry);
    entry->next = counters;
    counters = entry;
    return &entry->counter;
}

struct call_counter *counter_for_stream(void)
{
    static unsigned streams;
    struct call_counter *c = new_counter();
    snprintf(c->name, sizeof c->name, "s%u", ++streams);
    return c;
}

struct call_counter *counter_for_default_stream(int device)
{
    struct call_counter *c = new_counter();
    snprintf(c->name, sizeof c->name, "default%d", device);
    return c;
}

struct call_counter *counter_for_remote(void) { return &remote; }

struct call_counter *counter_for_none(void) { return &none; }

/* See cusim_set_site. */
static _Thread_local char site[4000];

void cusim_set_site(const char *text)
{
    static const char more[] = " ...";
    if (snprintf(site, sizeof site, "%s", text) >= (int)sizeof site)
        strcpy(site + sizeof site - sizeof more, more);
}

/* Appends a line to the trace. A single write keeps the lines of several processes apart. */
static void write_trace(const char *line)
{
    int fd = open(config()->trace, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, line, strlen(line)) != (ssize_t)strlen(line))
        fprintf(stderr, "cusim: cannot write to %s\n", config()->trace);
    if (fd >= 0)
        close(fd);
}

bool call_is_dropped(enum numbered call, struct call_counter *counter)
{
    char name[160];
    snprintf(name, sizeof name, "%s %s %s %u", config()->process, call_names[call], counter->name,
             ++counter->count[call]);
    if (config()->trace[0] != '\0') {
        char line[sizeof name + sizeof site + 2];
        snprintf(line, sizeof line, "%s%s%s\n", name, site[0] == '\0' ? "" : "\t", site);
        write_trace(line);
    }
    return strcmp(name, config()->drop) == 0;
}
