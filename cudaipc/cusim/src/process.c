/* Identities of processes, and their files. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"

/* Reads the state and the start time of a process. Returns false if it does not exist. */
static bool read_process(int pid, char *state, unsigned long long *start)
{
    char path[64];
    char text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return false;
    text[n] = '\0';
    /* The name of the program, in parentheses, may contain anything. */
    const char *after = strrchr(text, ')');
    return after != NULL && sscanf(after + 1,
                                   " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s"
                                   " %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
                                   state, start) == 2;
}

static uint64_t own_start(void)
{
    static _Atomic uint64_t cached;
    uint64_t known = atomic_load(&cached);
    if (known != 0)
        return known;
    char state;
    unsigned long long start = 0;
    read_process(getpid(), &state, &start);
    atomic_store(&cached, start);
    return start;
}

void identity_set_self(struct identity *id)
{
    atomic_store(&id->start, own_start());
    atomic_store(&id->pid, getpid());
}

bool identity_is_self(const struct identity *id) { return atomic_load(&id->pid) == getpid(); }

bool identity_is_alive(const struct identity *id)
{
    char state;
    unsigned long long start;
    if (!read_process(atomic_load(&id->pid), &state, &start))
        return false;
    return state != 'Z' && state != 'X' && start == atomic_load(&id->start);
}

int open_file_of(int pid, int fd)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    return open(path, O_RDWR | O_CLOEXEC);
}
