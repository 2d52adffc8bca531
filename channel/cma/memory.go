package cma

import (
	"sync/atomic"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// segment is a piece of memory in the sender's process.
type segment struct{ address, size uint64 }

// segmentOf returns the address and size of p, which must not be empty. The address is valid as long
// as the caller keeps p reachable.
func segmentOf(p []byte) segment {
	return segment{uint64(uintptr(unsafe.Pointer(unsafe.SliceData(p)))), uint64(len(p))}
}

// addressOfValidity returns the address of w, a validity word, for the peer to read. It is valid as
// long as the caller keeps w reachable.
func addressOfValidity(w *atomic.Uint64) uint64 { return uint64(uintptr(unsafe.Pointer(w))) }

// gather returns the pieces of the host memory buf, without a copy. If there are more than limit, it
// returns one new piece with a copy of all bytes instead. The memory must be ready to read. The error
// is ErrScattered if buf is too large to be copied.
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
