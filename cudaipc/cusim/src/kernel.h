/* Kernels that the simulator can run. */
#ifndef CUSIM_KERNEL_H
#define CUSIM_KERNEL_H

#include "stream.h"

enum { MAX_PARAMS = 6 };

/* The value of one parameter, by its letter in the signature. */
union value {
    uint64_t number; /* n, and p: the address as the program uses it */
    float real;      /* f */
};

/* What a kernel works on, when its work begins: memory by index of the parameter. */
struct kernel_call {
    union value params[MAX_PARAMS];
    float *memory[MAX_PARAMS];
};

struct kernel {
    const char *name;
    /* One letter for each parameter: o output of floats, p input of floats, n number, f float. */
    const char *signature;
    /* Sets the numbers of floats that each pointer needs; returns false if one overflows. */
    bool (*sizes)(const union value *params, size_t *floats);
    void (*run)(const struct kernel_call *call);
};

/* Returns the kernel with a name, or null. */
const struct kernel *kernel_find(const char *name);

/* Unloads all modules of a context. */
void module_unload_all(struct context *ctx);

#endif
