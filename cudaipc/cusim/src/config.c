/* Options: environment variables, which cusim_set can change later. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stream.h"

static struct config options;

/* Parses a number of at least 0. Returns false if text is no such number. */
static bool parse_number(const char *text, unsigned long long max, unsigned long long *value)
{
    char *end;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return errno == 0 && end != text && *end == '\0' && text[0] != '-' && *value <= max;
}

static bool set_int(const char *text, int unset, int max, int *value)
{
    unsigned long long n;
    *value = unset;
    if (text[0] == '\0')
        return true;
    if (!parse_number(text, (unsigned)max, &n))
        return false;
    *value = (int)n;
    return true;
}

static bool set_flag(const char *text, bool *flag)
{
    *flag = strcmp(text, "1") == 0;
    return *flag || text[0] == '\0' || strcmp(text, "0") == 0;
}

static bool set_text(const char *text, char *to, size_t size)
{
    if (strlen(text) >= size)
        return false;
    strcpy(to, text);
    return true;
}

static bool set_total_memory(const char *text)
{
    unsigned long long n = 16ULL << 30;
    if (text[0] != '\0' && !parse_number(text, SIZE_MAX, &n))
        return false;
    options.total_memory = (size_t)n;
    return true;
}

static bool set_delay(const char *text)
{
    int us;
    if (!set_int(text, 0, 60 * 1000 * 1000, &us))
        return false;
    options.delay_us = us;
    return true;
}

static bool set_hold(const char *text)
{
    bool hold;
    if (!set_flag(text, &hold))
        return false;
    stream_set_hold_all(hold);
    return true;
}

/* Sets an option; "" stands for its default. Returns false if the name or the value is invalid. */
static bool set_option(const char *name, const char *text)
{
    if (strcmp(name, "CUSIM_DEVICES") == 0)
        return set_int(text, 4, MAX_DEVICES, &options.devices);
    if (strcmp(name, "CUSIM_TOTAL_MEM") == 0)
        return set_total_memory(text);
    if (strcmp(name, "CUSIM_DELAY_US") == 0)
        return set_delay(text);
    if (strcmp(name, "CUSIM_NO_DEVICE") == 0)
        return set_flag(text, &options.no_device);
    if (strcmp(name, "CUSIM_NO_P2P") == 0)
        return set_flag(text, &options.no_peer);
    if (strcmp(name, "CUSIM_NO_IPC") == 0)
        return set_flag(text, &options.no_ipc);
    if (strcmp(name, "CUSIM_POOL") == 0)
        return set_flag(text, &options.pool);
    if (strcmp(name, "CUSIM_OWN_HANDLES") == 0)
        return set_flag(text, &options.own_handles);
    if (strcmp(name, "CUSIM_NO_FREE_WAIT") == 0)
        return set_flag(text, &options.no_free_wait);
    if (strcmp(name, "CUSIM_MIG") == 0)
        return set_flag(text, &options.mig);
    if (strcmp(name, "CUSIM_HOLD") == 0)
        return set_hold(text);
    if (strcmp(name, "CUSIM_BAD_DEVICE") == 0)
        return set_int(text, -1, MAX_DEVICES - 1, &options.bad_device);
    if (strcmp(name, "CUSIM_PROCESS") == 0)
        return set_text(text[0] == '\0' ? "main" : text, options.process, sizeof options.process);
    if (strcmp(name, "CUSIM_TRACE") == 0)
        return set_text(text, options.trace, sizeof options.trace);
    if (strcmp(name, "CUSIM_DROP") == 0)
        return set_text(text, options.drop, sizeof options.drop);
    if (strcmp(name, "CUSIM_KILL") == 0)
        return set_int(text, 0, INT_MAX, &options.kill);
    if (strcmp(name, "CUSIM_FAIL") == 0)
        return set_text(text, options.fail, sizeof options.fail);
    return false;
}

static const char *const names[] = {
    "CUSIM_DEVICES", "CUSIM_TOTAL_MEM", "CUSIM_DELAY_US", "CUSIM_NO_DEVICE", "CUSIM_NO_P2P",
    "CUSIM_NO_IPC", "CUSIM_POOL", "CUSIM_MIG", "CUSIM_OWN_HANDLES", "CUSIM_HOLD", "CUSIM_BAD_DEVICE", "CUSIM_PROCESS",
    "CUSIM_TRACE", "CUSIM_DROP", "CUSIM_FAIL", "CUSIM_KILL", "CUSIM_NO_FREE_WAIT",
};

static void read_environment(void)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        set_option(names[i], "");
        if (value != NULL && !set_option(names[i], value)) {
            fprintf(stderr, "cusim: %s=%s is invalid\n", names[i], value);
            abort();
        }
    }
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (!set_text(visible == NULL ? "all" : visible, options.visible, sizeof options.visible)) {
        fprintf(stderr, "cusim: CUDA_VISIBLE_DEVICES is too long\n");
        abort();
    }
}

struct config *config(void)
{
    static bool read;
    if (!read) {
        read = true;
        read_environment();
    }
    return &options;
}

int cusim_set(const char *name, const char *value)
{
    sim_lock();
    config();
    bool ok = set_option(name, value == NULL ? "" : value);
    sim_unlock();
    return ok ? 0 : -1;
}

/* Entries of CUSIM_FAIL are FUNCTION:ERROR or FUNCTION:ERROR:N, separated by commas. */
CUresult injected_failure(const char *function, uint64_t nth)
{
    size_t length = strlen(function);
    const char *entry = config()->fail;
    while (*entry != '\0') {
        unsigned error;
        unsigned long long only = 0;
        size_t end = strcspn(entry, ",");
        bool matches = strncmp(entry, function, length) == 0 && entry[length] == ':';
        if (matches && sscanf(entry + length, ":%u:%llu", &error, &only) >= 1) {
            if (only == 0 || only == nth)
                return (CUresult)error;
        }
        entry += end;
        if (*entry == ',')
            entry++;
    }
    return CUDA_SUCCESS;
}
