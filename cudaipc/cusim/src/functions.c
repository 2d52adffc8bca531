/* The simulated kernels for functions of elements, and for lines: elements along one dimension. See kernel.c, and
   kernels.ptx in package cudaipc for their description. All compute in double. */
#include "kernel.h"

#include <math.h>
#include <string.h>

/* A parameter that is a number. */
static uint64_t number(const struct kernel_call *c, int i) { return c->params[i].number; }

static bool valid_float(uint64_t size) { return size == sizeof(float) || size == sizeof(double); }

/* Returns element i of numbers of that size. */
static double load(const char *from, uint64_t i, uint64_t size)
{
    float narrow;
    double wide;
    if (size == sizeof wide) {
        memcpy(&wide, from + i * size, sizeof wide);
        return wide;
    }
    memcpy(&narrow, from + i * size, sizeof narrow);
    return (double)narrow;
}

static void store(char *to, uint64_t i, uint64_t size, double value)
{
    float narrow = (float)value;
    if (size == sizeof value)
        memcpy(to + i * size, &value, sizeof value);
    else
        memcpy(to + i * size, &narrow, sizeof narrow);
}

static uint64_t load_index(const char *from, uint64_t i)
{
    uint64_t index;
    memcpy(&index, from + i * sizeof index, sizeof index);
    return index;
}

/* map(dst, x, n, size, function) */

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double relu(double x) { return x <= 0 ? 0 : x; }

/* By their numbers. */
static double (*const functions[])(double) = {exp, log, sqrt, tanh, sigmoid, relu};

static bool map_sizes(const struct kernel_call *c, size_t *bytes)
{
    uint64_t size = number(c, 3);
    return valid_float(size) && number(c, 4) < sizeof functions / sizeof *functions &&
           array_size(number(c, 2), size, &bytes[0]) && array_size(number(c, 2), size, &bytes[1]);
}

/* Computes n elements. A size that is known when this is compiled makes it fast. */
static inline void map_elements(char *to, const char *from, uint64_t n, uint64_t size, double (*f)(double))
{
    for (uint64_t i = 0; i < n; i++)
        store(to, i, size, f(load(from, i, size)));
}

static void map(const struct kernel_call *c)
{
    uint64_t n = elements(c, number(c, 2));
    uint64_t size = number(c, 3);
    double (*f)(double) = functions[number(c, 4)];
    if (size == sizeof(float))
        map_elements(c->memory[0], c->memory[1], n, sizeof(float), f);
    else
        map_elements(c->memory[0], c->memory[1], n, size, f);
}

/* relu_backward(dst, x, y, n, size) */

static bool relu_backward_sizes(const struct kernel_call *c, size_t *bytes)
{
    bool valid = valid_float(number(c, 4));
    for (int i = 0; i < 3; i++)
        valid = valid && array_size(number(c, 3), number(c, 4), &bytes[i]);
    return valid;
}

static void relu_backward(const struct kernel_call *c)
{
    uint64_t n = elements(c, number(c, 3));
    uint64_t size = number(c, 4);
    for (uint64_t i = 0; i < n; i++)
        store(c->memory[0], i, size, load(c->memory[2], i, size) <= 0 ? 0 : load(c->memory[1], i, size));
}

/* Sets bytes to the size of n lines of length elements. The lines must be in whole rows of step lines. */
static bool lines_size(uint64_t n, uint64_t length, uint64_t step, uint64_t size, size_t *bytes)
{
    uint64_t all;
    return valid_float(size) && length > 0 && step > 0 && n % step == 0 && !__builtin_mul_overflow(n, length, &all) &&
           array_size(all, size, bytes);
}

/* argmax(dst, x, n, size, length, step) */

static bool argmax_sizes(const struct kernel_call *c, size_t *bytes)
{
    return array_size(number(c, 2), sizeof(uint64_t), &bytes[0]) &&
           lines_size(number(c, 2), number(c, 4), number(c, 5), number(c, 3), &bytes[1]);
}

/* Returns the index of the maximum of length elements, of which the first is that with index first. */
static inline uint64_t line_argmax(const char *from, uint64_t first, uint64_t length, uint64_t step, uint64_t size)
{
    uint64_t best = 0;
    double top = -INFINITY;
    for (uint64_t k = 0; k < length && !isnan(top); k++) {
        double value = load(from, first + k * step, size);
        if (value > top || isnan(value)) {
            top = value;
            best = k;
        }
    }
    return best;
}

static void argmax(const struct kernel_call *c)
{
    uint64_t n = elements(c, number(c, 2));
    uint64_t size = number(c, 3);
    uint64_t length = number(c, 4);
    uint64_t step = number(c, 5);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t first = i / step * step * length + i % step;
        uint64_t best = size == sizeof(float) ? line_argmax(c->memory[1], first, length, step, sizeof(float))
                                              : line_argmax(c->memory[1], first, length, step, size);
        memcpy(c->memory[0] + i * sizeof best, &best, sizeof best);
    }
}

/* take(dst, x, indices, n, size, length, step, x_outer, x_index, x_inner, ignored) */

static bool take_sizes(const struct kernel_call *c, size_t *bytes)
{
    uint64_t n = number(c, 3);
    uint64_t size = number(c, 4);
    uint64_t step = number(c, 6);
    return valid_float(size) && step > 0 && n % step == 0 && array_size(n, size, &bytes[0]) &&
           matrices_size(c, 7, (uint64_t[]){n / step, number(c, 5), step}, size, &bytes[1]) &&
           array_size(n, sizeof(uint64_t), &bytes[2]);
}

static void take(const struct kernel_call *c)
{
    uint64_t n = elements(c, number(c, 3));
    uint64_t size = number(c, 4);
    uint64_t step = number(c, 6);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t index = load_index(c->memory[2], i);
        double value = NAN;
        if (index == number(c, 10))
            value = 0;
        else if (index < number(c, 5))
            value = load(c->memory[1] + i / step * number(c, 7) + index * number(c, 8) + i % step * number(c, 9), 0, size);
        store(c->memory[0], i, size, value);
    }
}

/* put(dst, x, indices, n, size, length, step) */

static bool put_sizes(const struct kernel_call *c, size_t *bytes)
{
    uint64_t n = number(c, 3);
    uint64_t size = number(c, 4);
    uint64_t length = number(c, 5);
    return length > 0 && n % length == 0 && lines_size(n / length, length, number(c, 6), size, &bytes[0]) &&
           array_size(n / length, size, &bytes[1]) && array_size(n / length, sizeof(uint64_t), &bytes[2]);
}

static void put(const struct kernel_call *c)
{
    uint64_t n = elements(c, number(c, 3));
    uint64_t size = number(c, 4);
    uint64_t length = number(c, 5);
    uint64_t step = number(c, 6);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t line = i / step / length * step + i % step;
        bool chosen = load_index(c->memory[2], line) == i / step % length;
        store(c->memory[0], i, size, chosen ? load(c->memory[1], line, size) : 0);
    }
}

const struct kernel function_kernels[] = {
    {"map", "opnnn", map_sizes, map},
    {"relu_backward", "oppnn", relu_backward_sizes, relu_backward},
    {"argmax", "opnnnn", argmax_sizes, argmax},
    {"take", "oppnnnnnnnn", take_sizes, take},
    {"put", "oppnnnn", put_sizes, put},
    {NULL, NULL, NULL, NULL},
};
