/* Modules, functions and their launch. A module is PTX text, in which a function must exist with the
   parameters of the simulated kernel of that name. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"

struct module {
    CUmodule handle;
    struct context *context;
    char *text;
};

struct function {
    CUfunction handle;
    CUmodule module;
    struct context *context;
    const struct kernel *kernel;
};

static CUresult load(CUmodule *handle, const void *image)
{
    if (handle == NULL || image == NULL)
        return misuse(CUDA_ERROR_INVALID_VALUE, "the image is null");
    if (strstr(image, ".version") == NULL || strstr(image, ".target") == NULL)
        return misuse(CUDA_ERROR_INVALID_IMAGE, "the image is no PTX");
    struct module *m = must_alloc(sizeof *m);
    m->handle = handle_new(KIND_MODULE, m);
    m->context = current_context();
    m->text = must_alloc(strlen(image) + 1);
    strcpy(m->text, image);
    *handle = m->handle;
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(load(module, image));
}

static void close_function_of(void *object, void *module)
{
    struct function *f = object;
    if (f->module != module)
        return;
    handle_close(f->handle);
    free(f);
}

static void unload(struct module *m)
{
    handle_each(KIND_FUNCTION, close_function_of, m->handle);
    handle_close(m->handle);
    free(m->text);
    free(m);
}

static void unload_if_of_context(void *object, void *ctx)
{
    struct module *m = object;
    if (m->context == ctx)
        unload(m);
}

void module_unload_all(struct context *ctx) { handle_each(KIND_MODULE, unload_if_of_context, ctx); }

static CUresult unload_handle(CUmodule handle)
{
    struct module *m = handle_get(KIND_MODULE, handle);
    if (m == NULL)
        return misuse(CUDA_ERROR_INVALID_HANDLE, "%p is no module", (void *)handle);
    unload(m);
    return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(unload_handle(module));
}

static const char *skip_space(const char *p)
{
    while (isspace((unsigned char)*p))
        p++;
    return p;
}

/* Returns the text after the opening parenthesis of the parameters of an entry, or null. */
static const char *find_entry(const char *text, const char *name)
{
    size_t length = strlen(name);
    for (const char *p = strstr(text, ".entry"); p != NULL; p = strstr(p, ".entry")) {
        p = skip_space(p + strlen(".entry"));
        if (strncmp(p, name, length) != 0)
            continue;
        p = skip_space(p + length);
        if (*p == '(')
            return p + 1;
    }
    return NULL;
}

/* Reports whether the parameters of an entry have the types of a signature. */
static bool params_match(const char *params, const char *signature)
{
    const char *end = strchr(params, ')');
    for (const char *p = strstr(params, ".param"); end != NULL && p != NULL && p < end; p = strstr(p, ".param")) {
        if (*signature == '\0')
            return false;
        const char *type = *signature == 'd' ? ".f64" : *signature == 'l' ? ".align 8 .b8" : ".u64";
        p = skip_space(p + strlen(".param"));
        if (strncmp(p, type, strlen(type)) != 0)
            return false;
        signature++;
    }
    return end != NULL && *signature == '\0';
}

static CUresult get_function(CUfunction *handle, CUmodule module, const char *name)
{
    struct module *m = handle_get(KIND_MODULE, module);
    if (m == NULL)
        return misuse(CUDA_ERROR_INVALID_HANDLE, "%p is no module", (void *)module);
    const char *params = find_entry(m->text, name);
    if (params == NULL)
        return CUDA_ERROR_NOT_FOUND;
    const struct kernel *k = kernel_find(name);
    if (k == NULL)
        return misuse(CUDA_ERROR_NO_BINARY_FOR_GPU, "the kernel %s is not simulated", name);
    if (!params_match(params, k->signature))
        return misuse(CUDA_ERROR_INVALID_PTX, "the parameters of %s are not those of kernel.c", name);
    struct function *f = must_alloc(sizeof *f);
    f->handle = handle_new(KIND_FUNCTION, f);
    f->module = module;
    f->context = m->context;
    f->kernel = k;
    *handle = f->handle;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    ENTER(NEEDS_CONTEXT);
    LEAVE(get_function(function, module, name));
}

/* A launch. */
struct kernel_op {
    struct op op;
    const struct kernel *kernel;
    struct kernel_call call;
    size_t bytes[MAX_PARAMS]; /* of the memory of each pointer */
};

static bool is_pointer(char letter) { return letter == 'o' || letter == 's' || letter == 'p'; }

/* Writes other bytes to the output of a kernel. */
static void poison_output(const struct kernel_op *k)
{
    const char *signature = k->kernel->signature;
    if (signature[0] == 'o' && k->bytes[0] > 0)
        memset(k->call.memory[0], POISON, k->bytes[0]);
    if (signature[0] != 's')
        return;
    struct kernel_call poison = k->call; /* only the kernel knows the bytes that it writes */
    for (int i = 0; signature[i] != '\0'; i++) {
        if (signature[i] == 'p')
            poison.memory[i] = memset(must_alloc_staging(k->bytes[i]), POISON, k->bytes[i]);
    }
    k->kernel->run(&poison);
    for (int i = 0; signature[i] != '\0'; i++) {
        if (signature[i] == 'p')
            free(poison.memory[i]);
    }
}

/* Runs a kernel as a late device does, like run_copy in copy.c. An input that the output overwrites is
   read early, also if the device is not late. */
static void run_kernel(struct op *op)
{
    struct kernel_op *k = (struct kernel_op *)op;
    const char *signature = k->kernel->signature;
    struct kernel_call staged = k->call;
    size_t early[MAX_PARAMS] = {0};
    const char *out = k->call.memory[0];
    for (int i = 0; signature[i] != '\0'; i++) {
        if (signature[i] != 'p' || k->bytes[i] == 0)
            continue;
        const char *in = k->call.memory[i];
        bool overwritten = in < out + k->bytes[0] && out < in + k->bytes[i];
        if (!op->late && !overwritten)
            continue;
        early[i] = overwritten ? k->bytes[i] : k->bytes[i] / 2;
        staged.memory[i] = must_alloc_staging(k->bytes[i]);
        memcpy(staged.memory[i], in, early[i]);
    }
    if (op->late) {
        poison_output(k);
        pause_late(op);
    }
    for (int i = 0; signature[i] != '\0'; i++) {
        if (staged.memory[i] != k->call.memory[i])
            memcpy(staged.memory[i] + early[i], k->call.memory[i] + early[i], k->bytes[i] - early[i]);
    }
    k->kernel->run(&staged);
    for (int i = 0; signature[i] != '\0'; i++) {
        if (staged.memory[i] != k->call.memory[i])
            free(staged.memory[i]);
    }
}

/* Returns where the value of a parameter is kept, and sets its size, a multiple of 8. */
static void *param_at(struct kernel_call *call, int i, char letter, size_t *size)
{
    *size = letter == 'l' ? sizeof call->dims : sizeof(uint64_t);
    return letter == 'l' ? (void *)call->dims : (void *)&call->params[i];
}

/* Reads the values of parameters from an array of pointers to them. */
static void read_params(const char *signature, void **from, struct kernel_call *call)
{
    for (int i = 0; signature[i] != '\0'; i++) {
        size_t size;
        void *to = param_at(call, i, signature[i], &size);
        memcpy(to, from[i], size);
    }
}

/* Reads the values of parameters from a buffer, in which they follow each other. */
static CUresult read_packed(const char *signature, void **extra, struct kernel_call *call)
{
    const char *buffer = NULL;
    size_t size = 0;
    size_t offset = 0;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = extra[1];
        else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
            size = *(size_t *)extra[1];
        else
            return misuse(CUDA_ERROR_INVALID_VALUE, "%p is no key of extra", *extra);
    }
    if (buffer == NULL)
        return misuse(CUDA_ERROR_INVALID_VALUE, "extra has no buffer");
    for (int i = 0; signature[i] != '\0'; i++) {
        size_t width;
        void *to = param_at(call, i, signature[i], &width);
        if (offset + width > size)
            return misuse(CUDA_ERROR_INVALID_VALUE, "%zu bytes of parameters are too few", size);
        memcpy(to, buffer + offset, width);
        offset += width;
    }
    if (size != offset)
        return misuse(CUDA_ERROR_INVALID_VALUE, "%zu bytes of parameters are more than %zu", size, offset);
    return CUDA_SUCCESS;
}

/* Reports an access that a device does not make, and fails the context. */
static CUresult illegal_access(struct context *ctx, const char *kernel, uint64_t address, size_t bytes)
{
    ctx->failed = CUDA_ERROR_ILLEGAL_ADDRESS;
    return misuse(CUDA_ERROR_ILLEGAL_ADDRESS, "%s accesses %zu bytes at %#llx, which are not memory of device %d",
                  kernel, bytes, (unsigned long long)address, ctx->device);
}

/* Reports whether kernels of a context may access an allocation. */
static bool may_access(const struct context *ctx, const struct allocation *a)
{
    bool on_host = a->kind == MEMORY_HOST || a->kind == MEMORY_REGISTERED;
    bool opened_for_it = a->kind == MEMORY_IMPORTED && a->context == ctx;
    return on_host || opened_for_it || a->device == ctx->device || (ctx->peers & 1u << a->device) != 0;
}

/* Finds the memory of the pointers among the parameters of a launch. */
static CUresult resolve(struct kernel_op *op, struct context *ctx)
{
    const struct kernel *k = op->kernel;
    size_t sizes[MAX_PARAMS] = {0};
    if (!k->sizes(&op->call, sizes))
        return illegal_access(ctx, k->name, op->call.params[0].number, SIZE_MAX);
    int used = 0;
    for (int i = 0; k->signature[i] != '\0'; i++) {
        if (!is_pointer(k->signature[i]))
            continue;
        uint64_t address = op->call.params[i].number;
        size_t bytes = sizes[i];
        if (bytes == 0)
            continue;
        struct allocation *a = memory_find((uintptr_t)address);
        if (a == NULL || bytes > a->size - (size_t)(address - (uintptr_t)a->address) || memory_is_freed(a) ||
            !may_access(ctx, a))
            return illegal_access(ctx, k->name, address, bytes);
        op->call.memory[i] = a->bytes + (address - (uintptr_t)a->address);
        op->bytes[i] = bytes;
        op->op.uses[used++] = a;
    }
    return CUDA_SUCCESS;
}

/* The number of threads of a grid or a block must be at least 1. */
static bool valid_shape(unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz)
{
    return gx > 0 && gy > 0 && gz > 0 && bx > 0 && by > 0 && bz > 0 && (uint64_t)bx * by * bz <= 1024;
}

static CUresult launch(CUfunction function, uint64_t blocks, uint64_t threads, CUstream stream, void **params,
                       void **extra)
{
    struct function *f = handle_get(KIND_FUNCTION, function);
    struct stream *s = stream_get(stream);
    if (f == NULL || s == NULL)
        return misuse(CUDA_ERROR_INVALID_HANDLE, "%p is no function, or %p no stream", (void *)function,
                      (void *)stream);
    if (f->context != s->context || f->context != current_context())
        return misuse(CUDA_ERROR_INVALID_HANDLE, "the function, the stream and the current context differ");
    if ((params == NULL) == (extra == NULL))
        return misuse(CUDA_ERROR_INVALID_VALUE, "either params or extra must be given");
    struct kernel_op *op = must_alloc(sizeof *op);
    op->op.run = run_kernel;
    op->op.moves_data = true;
    op->kernel = f->kernel;
    op->call.blocks = blocks;
    op->call.threads = threads;
    CUresult result = CUDA_SUCCESS;
    if (params != NULL)
        read_params(f->kernel->signature, params, &op->call);
    else
        result = read_packed(f->kernel->signature, extra, &op->call);
    if (result == CUDA_SUCCESS)
        result = resolve(op, s->context);
    if (result != CUDA_SUCCESS) {
        free(op);
        return result;
    }
    stream_enqueue(s, &op->op);
    return CUDA_SUCCESS;
}

/* Of a block, unless a kernel has been allowed more. */
#define MAX_SHARED_BYTES (48u << 10)

CUresult cuLaunchKernel(CUfunction function, unsigned int gridX, unsigned int gridY, unsigned int gridZ,
                        unsigned int blockX, unsigned int blockY, unsigned int blockZ, unsigned int sharedBytes,
                        CUstream stream, void **params, void **extra)
{
    ENTER(NEEDS_CONTEXT);
    if (sharedBytes > MAX_SHARED_BYTES)
        LEAVE(misuse(CUDA_ERROR_INVALID_VALUE, "%u bytes of shared memory", sharedBytes));
    if (!valid_shape(gridX, gridY, gridZ, blockX, blockY, blockZ))
        LEAVE(misuse(CUDA_ERROR_INVALID_VALUE, "a grid or block has no thread, or a block more than 1024"));
    LEAVE(launch(function, (uint64_t)gridX * gridY * gridZ, (uint64_t)blockX * blockY * blockZ, stream, params, extra));
}
