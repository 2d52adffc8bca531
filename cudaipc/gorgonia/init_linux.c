#include <stdatomic.h>

#include <cuda.h>

// The linker resolves cuInit to __wrap_cuInit in all objects of the program, and __real_cuInit to
// the function of the driver.
CUresult __real_cuInit(unsigned int flags);

static atomic_flag called = ATOMIC_FLAG_INIT;

// __wrap_cuInit hides an error from the first call, which package cu makes while the program starts,
// and after which it would end the program. Later calls return the same error: those of New, too.
CUresult __wrap_cuInit(unsigned int flags)
{
	CUresult result = __real_cuInit(flags);
	return atomic_flag_test_and_set(&called) ? result : CUDA_SUCCESS;
}
