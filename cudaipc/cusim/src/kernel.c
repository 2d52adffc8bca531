/* The simulated kernels, but for those of functions.c. kernels.ptx in package cudaipc has those of a GPU, with the same names,
   parameters and results, and their description. Like there, thread i computes element i, so that
   elements beyond the threads of a launch are not computed.

   Only the products of matrices differ: a GPU rounds a product and its addition to the sum once, the
   simulator twice. */
#include "kernel.h"

#include <stdlib.h>
#include <string.h>

uint64_t elements(const struct kernel_call *c, uint64_t n)
{
    uint64_t threads = c->blocks * c->threads;
    return n < threads ? n : threads;
}

bool array_size(uint64_t n, uint64_t element, size_t *bytes)
{
    return !__builtin_mul_overflow(n, element, bytes);
}

static bool valid_element(uint64_t size) { return size == 1 || size == 2 || size == 4 || size == 8; }

/* fill(dst, n, size, value) */

static bool fill_sizes(const struct kernel_call *c, size_t *bytes)
{
    return valid_element(c->params[2].number) && array_size(c->params[1].number, c->params[2].number, &bytes[0]);
}

static void fill(const struct kernel_call *c)
{
    size_t size = c->params[2].number;
    uint64_t n = elements(c, c->params[1].number);
    for (uint64_t i = 0; i < n; i++) /* the low bytes come first */
        memcpy(c->memory[0] + i * size, &c->params[3].number, size);
}

/* copy(dst, src, n, size, rank, dims) */

static bool copy_sizes(const struct kernel_call *c, size_t *bytes)
{
    uint64_t n = 1;
    uint64_t rank = c->params[4].number;
    if (!valid_element(c->params[3].number) || rank == 0 || rank > MAX_DIMS)
        return false;
    bytes[0] = bytes[1] = c->params[3].number;
    for (uint64_t i = 0; i < rank; i++) {
        const struct dim *d = &c->dims[i];
        size_t to;
        size_t from;
        if (d->size == 0 || __builtin_mul_overflow(n, d->size, &n) ||
            __builtin_mul_overflow(d->size - 1, d->to, &to) || __builtin_mul_overflow(d->size - 1, d->from, &from) ||
            __builtin_add_overflow(bytes[0], to, &bytes[0]) || __builtin_add_overflow(bytes[1], from, &bytes[1]))
            return false;
    }
    return n == c->params[2].number;
}

/* Copies n elements of the first dimension. A size that is known when this is compiled makes it fast. */
static inline void copy_row(char *to, const char *from, const struct dim *d, uint64_t n, size_t size)
{
    for (uint64_t i = 0; i < n; i++)
        memcpy(to + i * d->to, from + i * d->from, size);
}

static void copy(const struct kernel_call *c)
{
    uint64_t n = elements(c, c->params[2].number);
    uint64_t size = c->params[3].number;
    const struct dim *row = &c->dims[0];
    for (uint64_t i = 0; i < n; i += row->size) {
        char *to = c->memory[0];
        const char *from = c->memory[1];
        uint64_t rest = i / row->size;
        for (uint64_t d = 1; d < c->params[4].number; d++) {
            to += rest % c->dims[d].size * c->dims[d].to;
            from += rest % c->dims[d].size * c->dims[d].from;
            rest /= c->dims[d].size;
        }
        uint64_t count = n - i < row->size ? n - i : row->size;
        if (row->to == size && row->from == size)
            memmove(to, from, count * size);
        else if (size == 4)
            copy_row(to, from, row, count, 4);
        else
            copy_row(to, from, row, count, size);
    }
}

/* sleep_ns(ns) */

static bool no_sizes(const struct kernel_call *c, size_t *bytes)
{
    (void)c;
    (void)bytes;
    return true;
}

static void sleep_ns(const struct kernel_call *c) { pause_us((long)(c->params[0].number / 1000)); }

/* Sets the sizes of count pointers to n elements each. */
static bool same_sizes(const struct kernel_call *c, size_t *bytes, int count, size_t element)
{
    bool valid = true;
    for (int i = 0; i < count; i++)
        valid = valid && array_size(c->params[count].number, element, &bytes[i]);
    return valid;
}

enum { MAX_SUM_THREADS = 256 };

/* The products of matrices are computed for this many rows of y at a time, of which a contiguous copy is
   in the cache. */
enum { MATMUL_ROWS = 64 };

/* sum(dst, x, rows, columns) */
static bool sum_sizes(const struct kernel_call *c, size_t *bytes, size_t element)
{
    uint64_t n;
    bool power_of_two = (c->threads & (c->threads - 1)) == 0;
    return power_of_two && c->threads <= MAX_SUM_THREADS && array_size(c->params[2].number, element, &bytes[0]) &&
           array_size(c->params[2].number, c->params[3].number, &n) && array_size(n, element, &bytes[1]);
}

bool matrices_size(const struct kernel_call *c, int strides, const uint64_t *count, size_t element, size_t *bytes)
{
    *bytes = element;
    for (int i = 0; i < 3; i++) {
        size_t extent;
        if (count[i] == 0) {
            *bytes = 0;
            return true;
        }
        if (__builtin_mul_overflow(count[i] - 1, c->params[strides + i].number, &extent) ||
            __builtin_add_overflow(*bytes, extent, bytes))
            return false;
    }
    return true;
}

/* matmul(dst, x, y, n, rows, columns, inner, strides of x, strides of y) */
static bool matmul_sizes(const struct kernel_call *c, size_t *bytes, size_t element)
{
    uint64_t n = c->params[3].number;
    uint64_t rows = c->params[4].number;
    uint64_t columns = c->params[5].number;
    uint64_t inner = c->params[6].number;
    uint64_t matrix;
    if (__builtin_mul_overflow(rows, columns, &matrix) || matrix == 0 || n % matrix != 0)
        return false;
    return array_size(n, element, &bytes[0]) &&
           matrices_size(c, 7, (uint64_t[]){n / matrix, rows, inner}, element, &bytes[1]) &&
           matrices_size(c, 10, (uint64_t[]){n / matrix, inner, columns}, element, &bytes[2]);
}

/* Compiles a function for processors that have longer vectors than all of their kind. The results are the
   same. */
#ifdef __x86_64__
#define AVX2 __attribute__((target("avx2")))
#define HAS_AVX2 __builtin_cpu_supports("avx2")
#else
#define AVX2
#define HAS_AVX2 false
#endif

/* Kernels for elements of one type. */
#define ARITHMETIC(TYPE, NAME)                                                                               \
    static bool three_sizes_##NAME(const struct kernel_call *c, size_t *bytes)                               \
    {                                                                                                        \
        return same_sizes(c, bytes, 3, sizeof(TYPE));                                                        \
    }                                                                                                        \
    static bool two_sizes_##NAME(const struct kernel_call *c, size_t *bytes)                                 \
    {                                                                                                        \
        return same_sizes(c, bytes, 2, sizeof(TYPE));                                                        \
    }                                                                                                        \
    static bool sum_sizes_##NAME(const struct kernel_call *c, size_t *bytes)                                 \
    {                                                                                                        \
        return sum_sizes(c, bytes, sizeof(TYPE));                                                            \
    }                                                                                                        \
    static bool matmul_sizes_##NAME(const struct kernel_call *c, size_t *bytes)                              \
    {                                                                                                        \
        return matmul_sizes(c, bytes, sizeof(TYPE));                                                         \
    }                                                                                                        \
    static void add_##NAME(const struct kernel_call *c)                                                      \
    {                                                                                                        \
        TYPE *dst = (TYPE *)(void *)c->memory[0];                                                            \
        const TYPE *x = (const TYPE *)(const void *)c->memory[1];                                            \
        const TYPE *y = (const TYPE *)(const void *)c->memory[2];                                            \
        uint64_t n = elements(c, c->params[3].number);                                                       \
        for (uint64_t i = 0; i < n; i++)                                                                     \
            dst[i] = x[i] + y[i] * (TYPE)c->params[4].real;                                                  \
    }                                                                                                        \
    static void mul_##NAME(const struct kernel_call *c)                                                      \
    {                                                                                                        \
        TYPE *dst = (TYPE *)(void *)c->memory[0];                                                            \
        const TYPE *x = (const TYPE *)(const void *)c->memory[1];                                            \
        const TYPE *y = (const TYPE *)(const void *)c->memory[2];                                            \
        uint64_t n = elements(c, c->params[3].number);                                                       \
        for (uint64_t i = 0; i < n; i++)                                                                     \
            dst[i] = x[i] * y[i];                                                                            \
    }                                                                                                        \
    static void div_##NAME(const struct kernel_call *c)                                                      \
    {                                                                                                        \
        TYPE *dst = (TYPE *)(void *)c->memory[0];                                                            \
        const TYPE *x = (const TYPE *)(const void *)c->memory[1];                                            \
        const TYPE *y = (const TYPE *)(const void *)c->memory[2];                                            \
        uint64_t n = elements(c, c->params[3].number);                                                       \
        for (uint64_t i = 0; i < n; i++)                                                                     \
            dst[i] = x[i] / y[i];                                                                            \
    }                                                                                                        \
    static void scale_##NAME(const struct kernel_call *c)                                                    \
    {                                                                                                        \
        TYPE *dst = (TYPE *)(void *)c->memory[0];                                                            \
        const TYPE *x = (const TYPE *)(const void *)c->memory[1];                                            \
        uint64_t n = elements(c, c->params[2].number);                                                       \
        for (uint64_t i = 0; i < n; i++)                                                                     \
            dst[i] = x[i] * (TYPE)c->params[3].real;                                                         \
    }                                                                                                        \
    static void sum_##NAME(const struct kernel_call *c)                                                      \
    {                                                                                                        \
        uint64_t columns = c->params[3].number;                                                              \
        for (uint64_t row = 0; row < c->params[2].number; row++) {                                           \
            const TYPE *x = (const TYPE *)(const void *)c->memory[1] + row * columns;                        \
            TYPE sums[MAX_SUM_THREADS] = {0};                                                                \
            for (uint64_t at = 0; at < columns; at += c->threads) {                                          \
                for (uint64_t i = 0; i < c->threads && at + i < columns; i++)                                \
                    sums[i] += x[at + i];                                                                    \
            }                                                                                                \
            for (uint64_t half = c->threads / 2; half > 0; half /= 2) {                                      \
                for (uint64_t i = 0; i < half; i++)                                                          \
                    sums[i] += sums[i + half];                                                               \
            }                                                                                                \
            ((TYPE *)(void *)c->memory[0])[row] = sums[0];                                                   \
        }                                                                                                    \
    }                                                                                                        \
    /* Adds the products of count elements at x and as many rows at y, which begin columns elements apart,   \
       to width elements of a row of the result, in that order. */                                           \
    static inline __attribute__((always_inline)) void add_rows_##NAME(                                       \
        TYPE *restrict dst, uint64_t width, const TYPE *x, const TYPE *restrict y, uint64_t columns, uint64_t count) \
    {                                                                                                        \
        uint64_t k = 0;                                                                                      \
        for (; k + 4 <= count; k += 4, y += 4 * columns) {                                                   \
            for (uint64_t i = 0; i < width; i++)                                                             \
                dst[i] = dst[i] + x[k] * y[i] + x[k + 1] * y[columns + i] +                                  \
                         x[k + 2] * y[2 * columns + i] + x[k + 3] * y[3 * columns + i];                      \
        }                                                                                                    \
        for (; k < count; k++, y += columns) {                                                               \
            for (uint64_t i = 0; i < width; i++)                                                             \
                dst[i] += x[k] * y[i];                                                                       \
        }                                                                                                    \
    }                                                                                                        \
    AVX2 static void add_rows_avx2_##NAME(TYPE *dst, uint64_t width, const TYPE *x, const TYPE *y,           \
                                          uint64_t columns, uint64_t count)                                  \
    {                                                                                                        \
        add_rows_##NAME(dst, width, x, y, columns, count);                                                   \
    }                                                                                                        \
    /* Copies rows of columns elements with these strides, in the order in which they are in memory. */      \
    static void copy_part_##NAME(TYPE *restrict part, const char *y, uint64_t rows, uint64_t columns,        \
                                 uint64_t row_stride, uint64_t column_stride)                                \
    {                                                                                                        \
        bool by_columns = row_stride != 0 && row_stride < column_stride;                                     \
        uint64_t outer = by_columns ? columns : rows;                                                        \
        uint64_t inner = by_columns ? rows : columns;                                                        \
        for (uint64_t i = 0; i < outer; i++) {                                                               \
            for (uint64_t j = 0; j < inner; j++) {                                                           \
                uint64_t row = by_columns ? j : i;                                                           \
                uint64_t column = by_columns ? i : j;                                                        \
                part[row * columns + column] =                                                               \
                    *(const TYPE *)(const void *)(y + row * row_stride + column * column_stride);            \
            }                                                                                                \
        }                                                                                                    \
    }                                                                                                        \
    static void matmul_##NAME(const struct kernel_call *c)                                                   \
    {                                                                                                        \
        uint64_t rows = c->params[4].number;                                                                 \
        uint64_t columns = c->params[5].number;                                                              \
        uint64_t inner = c->params[6].number;                                                                \
        uint64_t n = elements(c, c->params[3].number);                                                       \
        TYPE *part = must_alloc_staging(MATMUL_ROWS * columns * sizeof *part);                               \
        memset(c->memory[0], 0, n * sizeof(TYPE));                                                           \
        for (uint64_t first = 0; first < n; first += rows * columns) {                                       \
            uint64_t matrix = first / columns / rows;                                                        \
            const char *x = c->memory[1] + matrix * c->params[7].number;                                     \
            const char *y = c->memory[2] + matrix * c->params[10].number;                                    \
            for (uint64_t from = 0; from < inner; from += MATMUL_ROWS) {                                     \
                uint64_t count = inner - from < MATMUL_ROWS ? inner - from : MATMUL_ROWS;                    \
                copy_part_##NAME(part, y + from * c->params[11].number, count, columns, c->params[11].number, \
                                 c->params[12].number);                                                      \
                for (uint64_t row = 0; row < rows && first + row * columns < n; row++) {                     \
                    TYPE factors[MATMUL_ROWS];                                                               \
                    uint64_t at = first + row * columns;                                                     \
                    for (uint64_t k = 0; k < count; k++)                                                     \
                        factors[k] = *(const TYPE *)(const void *)(                                          \
                            x + row * c->params[8].number + (from + k) * c->params[9].number);               \
                    uint64_t width = n - at < columns ? n - at : columns;                                    \
                    TYPE *dst = (TYPE *)(void *)c->memory[0] + at;                                           \
                    if (HAS_AVX2)                                                                            \
                        add_rows_avx2_##NAME(dst, width, factors, part, columns, count);                     \
                    else                                                                                     \
                        add_rows_##NAME(dst, width, factors, part, columns, count);                          \
                }                                                                                            \
            }                                                                                                \
        }                                                                                                    \
        free(part);                                                                                          \
    }

ARITHMETIC(float, f32)
ARITHMETIC(double, f64)

#define ARITHMETIC_KERNELS(NAME)                                                                             \
    {"add_" #NAME, "oppnd", three_sizes_##NAME, add_##NAME},                                                 \
    {"mul_" #NAME, "oppn", three_sizes_##NAME, mul_##NAME},                                                  \
    {"div_" #NAME, "oppn", three_sizes_##NAME, div_##NAME},                                                  \
    {"scale_" #NAME, "opnd", two_sizes_##NAME, scale_##NAME},                                                \
    {"sum_" #NAME, "opnn", sum_sizes_##NAME, sum_##NAME},                                                    \
    {"matmul_" #NAME, "oppnnnnnnnnnn", matmul_sizes_##NAME, matmul_##NAME}

static const struct kernel kernels[] = {
    {"fill", "onnn", fill_sizes, fill},
    {"copy", "spnnnl", copy_sizes, copy},
    {"sleep_ns", "n", no_sizes, sleep_ns},
    ARITHMETIC_KERNELS(f32),
    ARITHMETIC_KERNELS(f64),
};

const struct kernel *kernel_find(const char *name)
{
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        if (strcmp(kernels[i].name, name) == 0)
            return &kernels[i];
    }
    for (const struct kernel *k = function_kernels; k->name != NULL; k++) {
        if (strcmp(k->name, name) == 0)
            return k;
    }
    return NULL;
}
