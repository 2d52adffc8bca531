package tensor

import (
	"math/bits"
	"runtime"
)

// mapping is memory from the operating system, off the Go heap if the system supports that. It is
// unmapped only after the *mapping has become unreachable, not when a storage in it is released, so
// that a stale user of released memory reads arbitrary bytes but does not crash.
type mapping struct{ data []byte }

// newMapping returns a mapping of size bytes of zeroed memory. size must be positive. The memory is
// unmapped after the mapping has become unreachable. If the system has no memory the error is a
// *SizeError.
func newMapping(size int) (*mapping, error) {
	whole, data, err := mapMemory(size)
	if err != nil {
		return nil, &SizeError{Size: size, Err: err}
	}
	m := &mapping{data: data}
	runtime.AddCleanup(m, unmapMemory, whole)
	return m, nil
}

// sizeClass returns the smallest size class that is at least size, which must be positive. There
// are four classes for each power of two, so that memory can be reused for slightly different
// sizes.
func sizeClass(size int) int {
	step := 1 << max(bits.Len(uint(size-1))-3, 0)
	return (size + step - 1) &^ (step - 1)
}
