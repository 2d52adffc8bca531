//go:build !linux

package tensor

// mapMemory takes memory from the Go heap, whose collector does the rest.
func mapMemory(size int) (whole, data []byte, err error) {
	data = heapBytes(size)
	return nil, data, nil
}

func discardMemory([]byte) {}

func unmapMemory([]byte) {}
