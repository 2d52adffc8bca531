/* Entering and leaving the functions of the driver: counts, needs, reports of misuse. */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"

pthread_mutex_t sim_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t sim_progress = PTHREAD_COND_INITIALIZER;

enum { MAX_FUNCTIONS = 512 };

static struct {
    const char *name;
    uint64_t calls;
} functions[MAX_FUNCTIONS];

static uint64_t all_calls;
static uint64_t blocking_calls;
static uint64_t misuses;
static char last_misuse[512];

static __thread const char *call_name = "cusim";
static __thread bool in_host_function;

void sim_lock(void) { pthread_mutex_lock(&sim_mutex); }

void sim_unlock(void) { pthread_mutex_unlock(&sim_mutex); }

void *must_alloc(size_t size)
{
    void *p = calloc(1, size);
    if (p == NULL) {
        fprintf(stderr, "cusim: out of memory\n");
        abort();
    }
    return p;
}

void *must_alloc_staging(size_t size)
{
    enum { LARGE_PAGE = 2 << 20 };
    if (size < LARGE_PAGE)
        return must_alloc(size);
    void *p = aligned_alloc(LARGE_PAGE, (size + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE);
    if (p == NULL)
        return must_alloc(size); /* which prints the error */
    (void)madvise(p, size, MADV_HUGEPAGE); /* without large pages it is only slower */
    return p;
}

/* Returns the index of a function in the table. A function that is not in it gets the first free
   entry. */
static int function_index(const char *name)
{
    for (int i = 0; i < MAX_FUNCTIONS - 1; i++) {
        if (functions[i].name == NULL)
            return i;
        if (strcmp(functions[i].name, name) == 0)
            return i;
    }
    return MAX_FUNCTIONS - 1;
}

static uint64_t count_call(const char *name)
{
    int i = function_index(name);
    functions[i].name = name;
    if (++all_calls == (uint64_t)config()->kill)
        kill(getpid(), SIGKILL);
    return ++functions[i].calls;
}

static CUresult check_need(enum need need)
{
    if (in_host_function)
        return misuse(CUDA_ERROR_NOT_PERMITTED, "called in a host function of a stream");
    if (need == NEEDS_NOTHING)
        return CUDA_SUCCESS;
    if (device_count() == 0)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (need == NEEDS_DRIVER)
        return CUDA_SUCCESS;
    struct context *ctx = current_context();
    if (ctx == NULL)
        return misuse(CUDA_ERROR_INVALID_CONTEXT, "the thread has no current context");
    if (!ctx->active)
        return misuse(CUDA_ERROR_INVALID_CONTEXT, "the current context has been released");
    return ctx->failed;
}

CUresult call_begin(const char *function, enum need need)
{
    sim_lock();
    call_name = function;
    CUresult result = injected_failure(function, count_call(function));
    if (result == CUDA_SUCCESS)
        result = check_need(need);
    if (result != CUDA_SUCCESS)
        sim_unlock();
    return result;
}

void count_blocking(void) { blocking_calls++; }

CUresult misuse(CUresult result, const char *format, ...)
{
    char text[400]; /* a longer text is cut */
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(last_misuse, sizeof last_misuse, "%.100s: %s", call_name, text);
    fprintf(stderr, "cusim: %s\n", last_misuse);
    misuses++;
    return result;
}

void set_in_host_function(bool in) { in_host_function = in; }

void set_call_name(const char *name) { call_name = name; }

uint64_t cusim_calls(const char *function)
{
    sim_lock();
    uint64_t calls = function[0] == '\0' ? all_calls : functions[function_index(function)].calls;
    sim_unlock();
    return calls;
}

uint64_t cusim_blocking(void)
{
    sim_lock();
    uint64_t calls = blocking_calls;
    sim_unlock();
    return calls;
}

uint64_t cusim_misuse(void)
{
    sim_lock();
    uint64_t count = misuses;
    sim_unlock();
    return count;
}

void cusim_last_misuse(char *text, size_t size)
{
    sim_lock();
    snprintf(text, size, "%s", last_misuse);
    sim_unlock();
}

CUresult cusim_not_simulated(const char *function)
{
    sim_lock();
    count_call(function);
    fprintf(stderr, "cusim: %s is not simulated\n", function);
    sim_unlock();
    return CUDA_ERROR_NOT_SUPPORTED;
}
