// Package cusim builds and controls a simulated CUDA driver, for tests on machines without a GPU.
package cusim
