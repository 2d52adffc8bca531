// Package cusim builds and controls a simulated CUDA driver, for tests on machines without a GPU.
//
// The simulator is a libcuda.so.1 in C, whose sources are embedded. [Library] compiles it once for
// each user and returns its path, which the test passes to the code that loads a driver. [Open]
// returns the [Control] of the simulator in the same process: it holds work back, injects failures
// and counts calls. README.md lists its properties and all options.
package cusim
