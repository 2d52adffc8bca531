//go:build !linux

package wait

import "runtime"

// offer lets another goroutine run, for want of a call for threads.
func offer() { runtime.Gosched() }

// stepAside has no use where threads cannot be told apart.
func stepAside() {}
