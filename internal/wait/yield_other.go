//go:build !linux

package wait

import "runtime"

// yieldThread yields to another goroutine: there is no portable call that yields to threads.
func yieldThread() { runtime.Gosched() }

// migrate does nothing: this system has no affinity of threads that could be set.
func migrate() {}
