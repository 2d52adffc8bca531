/* Kernels, and injected failures. */
#include "replay.h"

static const char ptx[] =
    ".version 6.4\n.target sm_50\n.address_size 64\n"
    ".visible .entry fill(.param .u64 dst, .param .u64 n, .param .u64 size, .param .u64 value)\n{ ret; }\n"
    ".visible .entry add_f32 (\n\t.param .u64 dst,\n\t.param .u64 x,\n\t.param .u64 y,\n\t.param .u64 n,\n"
    "\t.param .f64 alpha\n)\n{ ret; }\n"
    ".visible .entry mul_f32(.param .u64 dst, .param .u64 x, .param .u64 y, .param .u64 n)\n{ ret; }\n"
    ".visible .entry div_f64(.param .u64 dst, .param .u64 x, .param .u64 y, .param .u64 n)\n{ ret; }\n"
    ".visible .entry scale_f32(.param .u64 dst, .param .u64 x, .param .u64 n, .param .f32 factor)\n{ ret; }\n"
    ".visible .entry sum_f32(.param .u64 dst, .param .u64 x, .param .u64 rows, .param .u64 columns)\n{ ret; }\n"
    ".visible .entry matmul_f32(.param .u64 d, .param .u64 x, .param .u64 y, .param .u64 n, .param .u64 r, "
    ".param .u64 c, .param .u64 k, .param .u64 xm, .param .u64 xr, .param .u64 xc, .param .u64 ym, .param .u64 yr, "
    ".param .u64 yc)\n{ ret; }\n"
    ".visible .entry copy(.param .u64 dst, .param .u64 src, .param .u64 n, .param .u64 size, .param .u64 rank, "
    ".param .align 8 .b8 dims[1560])\n{ ret; }\n"
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

/* Loads the module with all kernels of this file in the context of device 0. */
static CUmodule load(void)
{
    CUmodule m;
    use_device(0);
    OK(cuModuleLoadData(&m, ptx));
    return m;
}

void scenario_kernels(void)
{
    CUmodule m = load();
    CUdeviceptr a = new_memory(24);
    CUdeviceptr b = new_memory(24);
    CUdeviceptr out = new_memory(24);
    unsigned long long n = 6;
    unsigned long long size = 4;
    unsigned long long six = 0x40c00000;  /* 6.0f */
    unsigned long long half = 0x3f000000; /* 0.5f */
    double alpha = 3;
    launch(function(m, "fill"), (void *[]){&a, &n, &size, &six});
    launch(function(m, "fill"), (void *[]){&b, &n, &size, &half});
    launch(function(m, "add_f32"), (void *[]){&out, &a, &b, &n, &alpha});
    EXPECT(first_float(out + 20) == 7.5f);
    launch(function(m, "mul_f32"), (void *[]){&out, &a, &b, &n});
    EXPECT(first_float(out + 20) == 3);
    unsigned long long rows = 2;
    unsigned long long columns = 3;
    launch(function(m, "sum_f32"), (void *[]){&out, &a, &rows, &columns});
    EXPECT(first_float(out + 4) == 18);
    EXPECT(first_float(out + 8) == 3);

    EXPECT(cusim_set("CUSIM_DELAY_US", "1000") == 0); /* in place, although it is late */
    launch(function(m, "add_f32"), (void *[]){&a, &a, &b, &n, &alpha});
    EXPECT(first_float(a + 20) == 7.5f);

    const double dividend[3] = {1, 2, 3};
    double quotient[3];
    unsigned long long three = 3;
    OK(cuMemcpyHtoD_v2(a, dividend, sizeof dividend));
    launch(function(m, "div_f64"), (void *[]){&out, &a, &a, &three});
    OK(cuMemcpyDtoH_v2(quotient, out, sizeof quotient));
    EXPECT(quotient[2] == 1);
}

/* Kernels with strides: products of matrices, and copies. */
void scenario_strides(void)
{
    CUmodule m = load();
    CUdeviceptr a = new_memory(24);
    CUdeviceptr b = new_memory(24);
    CUdeviceptr out = new_memory(24);
    const float left[6] = {1, 2, 3, 4, 5, 6};  /* 2 x 3 */
    const float right[6] = {1, 0, 0, 1, 2, 2}; /* 3 x 2 */
    const float product[4] = {7, 8, 16, 17};
    float got[6];
    unsigned long long no = 0;
    unsigned long long two = 2;
    unsigned long long three = 3;
    unsigned long long four = 4;
    unsigned long long six = 6;
    unsigned long long eight = 8;
    unsigned long long twelve = 12;
    OK(cuMemcpyHtoD_v2(a, left, sizeof left));
    OK(cuMemcpyHtoD_v2(b, right, sizeof right));
    launch(function(m, "matmul_f32"),
           (void *[]){&out, &a, &b, &four, &two, &two, &three, &no, &twelve, &four, &no, &eight, &four});
    OK(cuMemcpyDtoH_v2(got, out, sizeof product));
    EXPECT(memcmp(got, product, sizeof product) == 0);

    EXPECT(cusim_set("CUSIM_DELAY_US", "1000") == 0);
    unsigned long long dims[3 * 65] = {2, 12, 4, 3, 4, 8}; /* the last dimension first: size, strides */
    const float turned[6] = {1, 3, 5, 2, 4, 6};
    launch(function(m, "copy"), (void *[]){&out, &a, &six, &four, &two, dims});
    OK(cuMemcpyDtoH_v2(got, out, sizeof got));
    EXPECT(memcmp(got, turned, sizeof got) == 0);
    unsigned long long column[3 * 65] = {3, 8, 4}; /* one column of out, the others remain */
    const float mixed[6] = {1, 3, 2, 2, 3, 6};
    unsigned long long one = 1;
    launch(function(m, "copy"), (void *[]){&out, &a, &three, &four, &one, column});
    OK(cuMemcpyDtoH_v2(got, out, sizeof got));
    EXPECT(memcmp(got, mixed, sizeof got) == 0);
}

void scenario_modules(void)
{
    CUmodule m = load();
    CUfunction f;
    RESULT(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&f, m, "missing"));
    RESULT(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&f, m, "ad"));
    MISUSE(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleGetFunction(&f, m, "unknown"));
    MISUSE(CUDA_ERROR_INVALID_PTX, cuModuleGetFunction(&f, m, "scale_f32")); /* factor has 32 bits */
    f = function(m, "fill");
    OK(cuModuleUnload(m));
    MISUSE(CUDA_ERROR_INVALID_HANDLE, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){NULL}, NULL));
    MISUSE(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&m, "no PTX"));
    OK(cuModuleLoadData(&m, ".version 6.4 .target sm_75 .entry sum_f32(.param .u64 dst, .param .u64 x) { ret; }"));
    MISUSE(CUDA_ERROR_INVALID_PTX, cuModuleGetFunction(&f, m, "sum_f32")); /* lacks rows */
}

struct fill_params {
    CUdeviceptr dst;
    unsigned long long n;
    unsigned long long size;
    unsigned long long value;
};

static CUresult launch_packed(CUfunction f, CUstream s, struct fill_params *p, size_t size)
{
    void *extra[] = {
        CU_LAUNCH_PARAM_BUFFER_POINTER, p, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END,
    };
    return cuLaunchKernel(f, 1, 1, 1, 2, 1, 1, 0, s, NULL, extra);
}

/* Launches a fill that fails the context of device 0, and releases that context. */
static void expect_illegal(struct fill_params *p)
{
    CUmodule m = load();
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
    CUmodule m = load();
    CUfunction f = function(m, "fill");
    CUstream s = new_stream();
    struct fill_params p = {new_memory(8), 2, 4, 0x40200000};
    OK(launch_packed(f, s, &p, sizeof p));
    OK(cuStreamSynchronize(s));
    EXPECT(first_float(p.dst + 4) == 2.5f);
    MISUSE(CUDA_ERROR_INVALID_VALUE, launch_packed(f, s, &p, sizeof p - 1));
    MISUSE(CUDA_ERROR_INVALID_VALUE, launch_packed(f, s, &p, sizeof p + 8));
    MISUSE(CUDA_ERROR_INVALID_HANDLE, launch_packed(f, far_stream, &p, sizeof p));
    OK(cuCtxPushCurrent_v2(peer));
    MISUSE(CUDA_ERROR_INVALID_HANDLE, launch_packed(f, s, &p, sizeof p));
    OK(cuCtxPopCurrent_v2(NULL));
    MISUSE(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(f, 0, 1, 1, 1, 1, 1, 0, s, (void *[]){NULL}, NULL));

    OK(cuCtxEnablePeerAccess(peer, 0));
    CUdeviceptr near = p.dst;
    p.dst = far;
    OK(launch_packed(f, s, &p, sizeof p));
    OK(cuStreamSynchronize(s));
    EXPECT(first_float(far) == 2.5f);
    OK(cuCtxDisablePeerAccess(peer));
    expect_illegal(&p);
    p.dst = near + 4; /* the memory was freed with its context */
    expect_illegal(&p);
    use_device(0);
    p.dst = new_memory(8) + 4; /* one float too many */
    expect_illegal(&p);
    m = load();
    p.dst = 0;
    p.n = 0;
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
