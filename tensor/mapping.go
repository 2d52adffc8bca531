package tensor

import (
	"math/bits"
	"runtime"
)

// mapping is memory from the operating system, off the Go heap where the
// system offers that. It is unmapped once the mapping is unreachable and never
// before: a stale user of released memory reads garbage but does not crash.
type mapping struct{ data []byte }

// newMapping maps size bytes. Fresh pages are zero.
func newMapping(size int) (*mapping, error) {
	whole, data, err := mapMemory(size)
	if err != nil {
		return nil, &SizeError{Size: size, Err: err}
	}
	m := &mapping{data: data}
	runtime.AddCleanup(m, unmapMemory, whole)
	return m, nil
}

// sizeClass rounds size up to one of four sizes per doubling, so that memory
// fits the next use although sizes differ a little.
func sizeClass(size int) int {
	step := 1 << max(bits.Len(uint(size-1))-3, 0)
	return (size + step - 1) &^ (step - 1)
}
