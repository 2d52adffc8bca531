/* The simulated kernels, on floats of 32 bits. The PTX of a kernel has the same name and parameters:

   | kernel                    | result                                                             |
   |---------------------------|--------------------------------------------------------------------|
   | fill(out, value, n)       | out[i] = value                                                     |
   | add(out, a, b, n)         | out[i] = a[i] + b[i]                                               |
   | sub(out, a, b, n)         | out[i] = a[i] - b[i]                                               |
   | mul(out, a, b, n)         | out[i] = a[i] * b[i]                                               |
   | div(out, a, b, n)         | out[i] = a[i] / b[i], rounded to nearest                           |
   | scale(out, a, factor, n)  | out[i] = a[i] * factor                                             |
   | sum(out, a, n)            | out[0] = a[0] + a[1] + ..., in this order, beginning with 0        |
   | matmul(out, a, b, m, k, n)| out (m x n) = a (m x k) times b (k x n), row-major and contiguous; |
   |                           | each sum begins with 0 and goes from the first column of a         |
   | sleep_ns(ns)              | nothing, after ns nanoseconds                                      |

   out, a and b are .u64 addresses; n, m, k and ns are .u64; value and factor are .f32. Each product
   and each sum is rounded separately to 32 bits (mul.rn, add.rn, not fma). out may be the same as a
   or b, except in matmul. Any grid gives the same result: a thread handles element i, i + the number
   of threads, and so on, and sum uses one thread only. */
#include "kernel.h"

#include <string.h>

/* Kernels whose arrays all have n floats, where n is the last parameter. */
static bool elementwise_sizes(const union value *params, size_t *floats, int count)
{
    for (int i = 0; i < count; i++)
        floats[i] = params[count].number;
    return params[count].number <= SIZE_MAX / sizeof(float);
}

static bool fill_sizes(const union value *params, size_t *floats)
{
    floats[0] = params[2].number;
    return params[2].number <= SIZE_MAX / sizeof(float);
}

static void fill(const struct kernel_call *c)
{
    for (uint64_t i = 0; i < c->params[2].number; i++)
        c->memory[0][i] = c->params[1].real;
}

static bool binary_sizes(const union value *params, size_t *floats) { return elementwise_sizes(params, floats, 3); }

static void add(const struct kernel_call *c)
{
    for (uint64_t i = 0; i < c->params[3].number; i++)
        c->memory[0][i] = c->memory[1][i] + c->memory[2][i];
}

static void sub(const struct kernel_call *c)
{
    for (uint64_t i = 0; i < c->params[3].number; i++)
        c->memory[0][i] = c->memory[1][i] - c->memory[2][i];
}

static void mul(const struct kernel_call *c)
{
    for (uint64_t i = 0; i < c->params[3].number; i++)
        c->memory[0][i] = c->memory[1][i] * c->memory[2][i];
}

static void divide(const struct kernel_call *c)
{
    for (uint64_t i = 0; i < c->params[3].number; i++)
        c->memory[0][i] = c->memory[1][i] / c->memory[2][i];
}

static bool scale_sizes(const union value *params, size_t *floats)
{
    floats[0] = params[3].number;
    floats[1] = params[3].number;
    return params[3].number <= SIZE_MAX / sizeof(float);
}

static void scale(const struct kernel_call *c)
{
    for (uint64_t i = 0; i < c->params[3].number; i++)
        c->memory[0][i] = c->memory[1][i] * c->params[2].real;
}

static bool sum_sizes(const union value *params, size_t *floats)
{
    floats[0] = 1;
    floats[1] = params[2].number;
    return params[2].number <= SIZE_MAX / sizeof(float);
}

static void sum(const struct kernel_call *c)
{
    float total = 0;
    for (uint64_t i = 0; i < c->params[2].number; i++)
        total += c->memory[1][i];
    c->memory[0][0] = total;
}

static bool matmul_sizes(const union value *params, size_t *floats)
{
    size_t m = params[3].number;
    size_t k = params[4].number;
    size_t n = params[5].number;
    if (__builtin_mul_overflow(m, n, &floats[0]) || __builtin_mul_overflow(m, k, &floats[1]) ||
        __builtin_mul_overflow(k, n, &floats[2]))
        return false;
    const size_t most = SIZE_MAX / sizeof(float);
    return floats[0] <= most && floats[1] <= most && floats[2] <= most;
}

static void matmul(const struct kernel_call *c)
{
    uint64_t m = c->params[3].number;
    uint64_t k = c->params[4].number;
    uint64_t n = c->params[5].number;
    for (uint64_t row = 0; row < m; row++) {
        for (uint64_t column = 0; column < n; column++) {
            float total = 0;
            for (uint64_t i = 0; i < k; i++)
                total += c->memory[1][row * k + i] * c->memory[2][i * n + column];
            c->memory[0][row * n + column] = total;
        }
    }
}

static bool no_sizes(const union value *params, size_t *floats)
{
    (void)params;
    (void)floats;
    return true;
}

static void sleep_ns(const struct kernel_call *c) { pause_us((long)(c->params[0].number / 1000)); }

static const struct kernel kernels[] = {
    {"fill", "ofn", fill_sizes, fill},
    {"add", "oppn", binary_sizes, add},
    {"sub", "oppn", binary_sizes, sub},
    {"mul", "oppn", binary_sizes, mul},
    {"div", "oppn", binary_sizes, divide},
    {"scale", "opfn", scale_sizes, scale},
    {"sum", "opn", sum_sizes, sum},
    {"matmul", "oppnnn", matmul_sizes, matmul},
    {"sleep_ns", "n", no_sizes, sleep_ns},
};

const struct kernel *kernel_find(const char *name)
{
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        if (strcmp(kernels[i].name, name) == 0)
            return &kernels[i];
    }
    return NULL;
}
