/* Kernels, and injected failures. */
#include "replay.h"

static const char ptx[] =
    ".version 6.4\n.target sm_75\n.address_size 64\n"
    ".visible .entry fill(.param .u64 out, .param .f32 value, .param .u64 n)\n{ ret; }\n"
    ".visible .entry add (\n\t.param .u64 out,\n\t.param .u64 a,\n\t.param .u64 b,\n\t.param .u64 n\n)\n{ ret; }\n"
    ".visible .entry sub(.param .u64 out, .param .u64 a, .param .u64 b, .param .u64 n)\n{ ret; }\n"
    ".visible .entry mul(.param .u64 out, .param .u64 a, .param .u64 b, .param .u64 n)\n{ ret; }\n"
    ".visible .entry div(.param .u64 out, .param .u64 a, .param .u64 b, .param .u64 n)\n{ ret; }\n"
    ".visible .entry scale(.param .u64 out, .param .u64 a, .param .f32 f, .param .u32 n)\n{ ret; }\n"
    ".visible .entry sum(.param .u64 out, .param .u64 a, .param .u64 n)\n{ ret; }\n"
    ".visible .entry matmul(.param .u64 o, .param .u64 a, .param .u64 b, .param .u64 m, .param .u64 k, .param .u64 n)\n"
    "{ ret; }\n"
    ".visible .entry unknown(.param .u64 n)\n{ ret; }\n";

static CUfunction function(CUmodule m, const char *name)
{
    CUfunction f;
    OK(cuModuleGetFunction(&f, m, name));
    return f;
}

static void launch(CUfunction f, void **params)
{
    OK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
}

static float first_float(CUdeviceptr p)
{
    float value;
    OK(cuMemcpyDtoH_v2(&value, p, sizeof value));
    return value;
}

void scenario_kernels(void)
{
    use_device(0);
    CUmodule m;
    OK(cuModuleLoadData(&m, ptx));
    CUdeviceptr a = new_memory(24);
    CUdeviceptr b = new_memory(24);
    CUdeviceptr out = new_memory(24);
    float x = 6;
    float y = 1.5f;
    unsigned long long n = 6;
    launch(function(m, "fill"), (void *[]){&a, &x, &n});
    launch(function(m, "fill"), (void *[]){&b, &y, &n});
    launch(function(m, "add"), (void *[]){&out, &a, &b, &n});
    EXPECT(first_float(out + 20) == 7.5f);
    launch(function(m, "sub"), (void *[]){&out, &a, &b, &n});
    EXPECT(first_float(out + 20) == 4.5f);
    launch(function(m, "mul"), (void *[]){&out, &a, &b, &n});
    EXPECT(first_float(out + 20) == 9);
    launch(function(m, "div"), (void *[]){&out, &a, &b, &n});
    EXPECT(first_float(out + 20) == 4);
    launch(function(m, "sum"), (void *[]){&out, &a, &n});
    EXPECT(first_float(out) == 36);
    EXPECT(first_float(out + 4) == 4);

    const float left[6] = {1, 2, 3, 4, 5, 6};       /* 2 x 3 */
    const float right[6] = {1, 0, 0, 1, 2, 2};      /* 3 x 2 */
    const float product[4] = {7, 8, 16, 17};
    float got[4];
    unsigned long long rows = 2;
    unsigned long long inner = 3;
    OK(cuMemcpyHtoD_v2(a, left, sizeof left));
    OK(cuMemcpyHtoD_v2(b, right, sizeof right));
    launch(function(m, "matmul"), (void *[]){&out, &a, &b, &rows, &inner, &rows});
    OK(cuMemcpyDtoH_v2(got, out, sizeof got));
    EXPECT(memcmp(got, product, sizeof got) == 0);

    EXPECT(cusim_set("CUSIM_DELAY_US", "1000") == 0); /* in place, although it is late */
    launch(function(m, "add"), (void *[]){&a, &a, &b, &n});
    EXPECT(first_float(a + 20) == 8);

    CUfunction f;
    RESULT(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&f, m, "missing"));
    RESULT(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&f, m, "ad"));
    MISUSE(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleGetFunction(&f, m, "unknown"));
    MISUSE(CUDA_ERROR_INVALID_PTX, cuModuleGetFunction(&f, m, "scale")); /* n has 32 bits */
    f = function(m, "fill");
    OK(cuModuleUnload(m));
    MISUSE(CUDA_ERROR_INVALID_HANDLE, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&a, &x, &n}, NULL));
    MISUSE(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&m, "no PTX"));
    OK(cuModuleLoadData(&m, ".version 6.4 .target sm_75 .entry sum(.param .u64 out, .param .u64 a) { ret; }"));
    MISUSE(CUDA_ERROR_INVALID_PTX, cuModuleGetFunction(&f, m, "sum")); /* lacks n */
}

struct fill_params {
    CUdeviceptr out;
    float value;
    unsigned long long n;
};

static CUresult launch_packed(CUfunction f, CUstream s, struct fill_params *p, size_t size)
{
    void *extra[] = {
        CU_LAUNCH_PARAM_BUFFER_POINTER, p, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END,
    };
    return cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, NULL, extra);
}

/* Launches a fill that fails the context of device 0, and releases that context. */
static void expect_illegal(struct fill_params *p)
{
    CUmodule m;
    use_device(0);
    OK(cuModuleLoadData(&m, ptx));
    MISUSE(CUDA_ERROR_ILLEGAL_ADDRESS, launch_packed(function(m, "fill"), NULL, p, sizeof *p));
    RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    while (cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS)
        continue;
}

void scenario_launch(void)
{
    CUcontext peer = use_device(1);
    CUdeviceptr far = new_memory(8);
    CUstream far_stream = new_stream();
    use_device(0);
    CUmodule m;
    OK(cuModuleLoadData(&m, ptx));
    CUfunction f = function(m, "fill");
    CUstream s = new_stream();
    struct fill_params p = {new_memory(8), 2.5f, 2};
    OK(launch_packed(f, s, &p, sizeof p));
    OK(cuStreamSynchronize(s));
    EXPECT(first_float(p.out + 4) == 2.5f);
    MISUSE(CUDA_ERROR_INVALID_VALUE, launch_packed(f, s, &p, sizeof p - 1));
    MISUSE(CUDA_ERROR_INVALID_VALUE, launch_packed(f, s, &p, sizeof p + 8));
    MISUSE(CUDA_ERROR_INVALID_HANDLE, launch_packed(f, far_stream, &p, sizeof p));
    MISUSE(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(f, 0, 1, 1, 1, 1, 1, 0, s, (void *[]){NULL}, NULL));

    OK(cuCtxEnablePeerAccess(peer, 0));
    CUdeviceptr near = p.out;
    p.out = far;
    OK(launch_packed(f, s, &p, sizeof p));
    OK(cuStreamSynchronize(s));
    EXPECT(first_float(far) == 2.5f);
    OK(cuCtxDisablePeerAccess(peer));
    expect_illegal(&p);
    p.out = near + 4; /* the memory was freed with its context */
    expect_illegal(&p);
    use_device(0);
    p.out = new_memory(8) + 4; /* one float too many */
    expect_illegal(&p);
    use_device(0);
    p.out = new_memory(16) + 2; /* not aligned */
    expect_illegal(&p);
    use_device(0);
    p.out = 0;
    p.n = 0;
    OK(cuModuleLoadData(&m, ptx));
    OK(launch_packed(function(m, "fill"), NULL, &p, sizeof p));
    OK(cuCtxSynchronize());
}

void scenario_failures(void)
{
    use_device(0);
    CUdeviceptr p;
    EXPECT(cusim_set("CUSIM_FAIL", "cuMemAlloc_v2:2,cuEventCreate:999:2") == 0);
    RESULT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&p, 1));
    RESULT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&p, 1));
    CUevent e = new_event(0);
    RESULT(CUDA_ERROR_UNKNOWN, cuEventCreate(&e, 0));
    OK(cuEventCreate(&e, 0));
    EXPECT(cusim_set("CUSIM_FAIL", "") == 0);
    OK(cuMemAlloc_v2(&p, 1));
    EXPECT(cusim_misuse() == 0);

    /* Memory that a queued operation of another context uses is freed. */
    use_device(1);
    CUstream s = new_stream();
    CUdeviceptr q = new_memory(1);
    EXPECT(cusim_hold(s) == 0);
    OK(cuMemcpyAsync(q, p, 1, s));
    OK(cuMemFree_v2(p));
    EXPECT(cusim_release(s) == 0);
    RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(s));
    EXPECT(cusim_misuse() == 1);
    char text[200];
    cusim_last_misuse(text, sizeof text);
    EXPECT(strstr(text, "freed before the operation was done") != NULL);
}
