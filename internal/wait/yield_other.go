//go:build !linux

package wait

import "runtime"

// yieldThread yields the processor to another goroutine (runtime.Gosched): there is no portable
// call that yields to threads.
func yieldThread() { runtime.Gosched() }

// migrate does nothing: this system has no affinity of threads that could be set.
func migrate() {}
