package cma

import (
	"sync/atomic"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// segment is a piece of memory of the sender's process.
type segment struct{ address, size uint64 }

// segmentOf says where a piece of memory lies that is not empty. The address means
// something for as long as the memory is reachable.
func segmentOf(p []byte) segment {
	return segment{uint64(uintptr(unsafe.Pointer(unsafe.SliceData(p)))), uint64(len(p))}
}

// addressOfWord is where the peer reads w.
func addressOfWord(w *atomic.Uint64) uint64 { return uint64(uintptr(unsafe.Pointer(w))) }

// gather returns the pieces of buf: at most limit, for which it copies them
// together where they are more.
func gather(buf device.Buffer, limit int) ([][]byte, error) {
	pieces := buf.AppendSegments(nil)
	if len(pieces) <= limit {
		return pieces, nil
	}
	if err := checkGather(buf); err != nil {
		return nil, err
	}
	whole := make([]byte, buf.Len())
	if err := device.CopyHost(device.Bytes(whole), buf); err != nil {
		return nil, err
	}
	return [][]byte{whole}, nil
}

// checkGather refuses a tensor that is too large to be copied together.
func checkGather(buf device.Buffer) error {
	if buf.Len() > MaxGather {
		return ErrScattered
	}
	return nil
}
