package cma

import (
	"sync/atomic"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// segment is a piece of memory in the sender's process.
type segment struct{ address, size uint64 }

// segmentOf returns the address and size in bytes of the memory of p, which must not be empty. The
// address is valid as long as the caller keeps p reachable.
func segmentOf(p []byte) segment {
	return segment{uint64(uintptr(unsafe.Pointer(unsafe.SliceData(p)))), uint64(len(p))}
}

// addressOfValidity returns the address of w, a validity word, which the peer reads from this
// process. The address is valid as long as the caller keeps w reachable.
func addressOfValidity(w *atomic.Uint64) uint64 { return uint64(uintptr(unsafe.Pointer(w))) }

// gather returns the pieces of the host memory of buf. If there are at most limit pieces, the
// result is a new list that shares buf's memory. Otherwise the result is one new piece with a copy
// of all bytes; if buf is larger than MaxGather, gather returns ErrScattered instead. The memory
// must be ready to be read.
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

// checkGather returns ErrScattered if buf is larger than MaxGather, and otherwise nil.
func checkGather(buf device.Buffer) error {
	if buf.Len() > MaxGather {
		return ErrScattered
	}
	return nil
}
