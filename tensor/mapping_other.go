//go:build !linux

package tensor

// mapMemory returns size bytes of zeroed, garbage-collected memory as data. whole is nil, since there
// is nothing to unmap, and err is always nil.
func mapMemory(size int) (whole, data []byte, err error) {
	data = heapBytes(size)
	return nil, data, nil
}

func discardMemory([]byte) {}

func unmapMemory([]byte) {}
