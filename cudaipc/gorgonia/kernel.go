package gorgonia

/*
#include <cuda.h>

// launch passes the parameters as the n bytes at args, which the driver copies.
static CUresult launch(CUfunction f, const unsigned *grid, const unsigned *block, unsigned shared,
                       CUstream s, void *args, size_t n) {
	void *extra[] = {
		CU_LAUNCH_PARAM_BUFFER_POINTER, args,
		CU_LAUNCH_PARAM_BUFFER_SIZE, &n,
		CU_LAUNCH_PARAM_END,
	};
	return cuLaunchKernel(f, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared, s, NULL, extra);
}
#cgo noescape launch
#cgo nocallback launch
*/
import "C"

import (
	"math"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
)

func (cuda) LoadModule(image []byte) (driver.Module, error) {
	m, err := cu.LoadData(string(image))
	return handle[driver.Module](m), check("cuModuleLoadData", err)
}

func (cuda) UnloadModule(m driver.Module) error {
	return check("cuModuleUnload", handle[cu.Module](m).Unload())
}

func (cuda) Function(m driver.Module, name string) (driver.Function, error) {
	f, err := handle[cu.Module](m).Function(name)
	return handle[driver.Function](f), check("cuModuleGetFunction", err)
}

// Launch calls C, since cu.Function.Launch takes 8 bytes for each parameter, whatever its size.
func (cuda) Launch(f driver.Function, grid, block driver.Dim, shared int, s driver.Stream, args []byte) error {
	const call = "cuLaunchKernel"
	if uint64(shared) > math.MaxUint32 { // or negative
		return driver.Check(call, driver.ResultInvalidValue)
	}
	g, b := [3]C.uint{C.uint(grid.X), C.uint(grid.Y), C.uint(grid.Z)}, [3]C.uint{C.uint(block.X), C.uint(block.Y), C.uint(block.Z)}
	return checkResult(call, C.launch(handle[C.CUfunction](f), &g[0], &b[0], C.uint(shared),
		handle[C.CUstream](s), unsafe.Pointer(unsafe.SliceData(args)), C.size_t(len(args))))
}
