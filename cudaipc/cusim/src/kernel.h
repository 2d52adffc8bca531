/* Kernels that the simulator can run. */
#ifndef CUSIM_KERNEL_H
#define CUSIM_KERNEL_H

#include "stream.h"

enum { MAX_PARAMS = 13, MAX_DIMS = 65 };

/* The value of one parameter, by its letter in the signature. */
union value {
    uint64_t number; /* n, and o, s and p: the address as the program uses it */
    double real;     /* d */
};

/* One entry of a list of dimensions. Strides are in bytes. */
struct dim {
    uint64_t size;
    uint64_t to;
    uint64_t from;
};

/* A launch of a kernel: memory by index of the parameter. */
struct kernel_call {
    uint64_t blocks;
    uint64_t threads; /* of each block */
    union value params[MAX_PARAMS];
    struct dim dims[MAX_DIMS];
    char *memory[MAX_PARAMS];
};

struct kernel {
    const char *name;
    /* One letter for each parameter: o output whose bytes are all written, s output of which some are
       written, p input, n number, d floating-point number of 64 bits, l list of MAX_DIMS dimensions. */
    const char *signature;
    /* Sets the bytes that each pointer needs; returns false if the parameters are invalid. */
    bool (*sizes)(const struct kernel_call *call, size_t *bytes);
    void (*run)(const struct kernel_call *call);
};

/* Returns the kernel with a name, or null. */
const struct kernel *kernel_find(const char *name);

/* The kernels of functions.c. The last one has no name. */
extern const struct kernel function_kernels[];

/* Returns the number of the n elements for which a launch has threads. */
uint64_t elements(const struct kernel_call *call, uint64_t n);

/* Sets bytes to the size of n elements; returns false if it overflows. */
bool array_size(uint64_t n, uint64_t element, size_t *bytes);

/* Sets bytes to the size of count[0] matrices of count[1] rows and count[2] columns, whose strides begin with that
   parameter; returns false if it overflows. */
bool matrices_size(const struct kernel_call *call, int strides, const uint64_t *count, size_t element, size_t *bytes);

/* Unloads all modules of a context. */
void module_unload_all(struct context *ctx);

#endif
