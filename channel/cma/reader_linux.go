package cma

import (
	"io"
	"math"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
)

// maxPieces is the maximum number of pieces per system call.
const maxPieces = 1024

// reader reads the memory of other processes. The zero value is ready to use. It reuses its slices for
// later reads, so it must not be used concurrently; it retains no memory of callers.
type reader struct {
	pieces [][]byte
	local  []unix.Iovec
	remote []unix.RemoteIovec
}

// read copies bytes off to off+n of src, a list of memory in process pid, to the same offsets of dst,
// which is host memory. Both must have these bytes. The error is a [*ReadError]; some bytes may have
// been copied then. The call cannot be interrupted.
func (r *reader) read(pid int, dst device.Buffer, src []segment, off, n int) error {
	r.pieces = dst.AppendSegments(r.pieces[:0])
	defer r.dropReferences()
	for end := off + n; off < end; {
		r.setVectors(src, off, end-off)
		failpoint.Here()
		got, err := unix.ProcessVMReadv(pid, r.local, r.remote, 0)
		if err == nil && got <= 0 {
			err = io.ErrNoProgress
		}
		if err != nil {
			return &ReadError{PID: pid, Err: err}
		}
		off += got // fewer than n if there are too many pieces
	}
	return nil
}

// setVectors prepares a system call. It sets r.local and r.remote to the n bytes from offset off of
// r.pieces and of src, or to fewer if these are more than maxPieces pieces. If the two lists differ in
// size the system copies as many bytes as the smaller one has.
func (r *reader) setVectors(src []segment, off, n int) {
	r.local, r.remote = r.local[:0], r.remote[:0]
	skip, left := uint64(off), uint64(n)
	for _, p := range r.pieces {
		start, size, ok := intersect(uint64(len(p)), &skip, &left)
		if ok {
			r.local = append(r.local, unix.Iovec{Base: unsafe.SliceData(p[start:])})
			r.local[len(r.local)-1].SetLen(int(size))
		}
		if left == 0 || len(r.local) == maxPieces {
			break
		}
	}
	skip, left = uint64(off), uint64(n)
	for _, s := range src {
		start, size, ok := intersect(s.size, &skip, &left)
		if ok {
			r.remote = append(r.remote, unix.RemoteIovec{Base: uintptr(s.address + start), Len: int(size)})
		}
		if left == 0 || len(r.remote) == maxPieces {
			break
		}
	}
}

// intersect determines which bytes of a piece are within a range. The piece has size bytes. The range
// begins *skip bytes after the start of the piece, and has *left bytes. intersect returns the offset in
// the piece of the first such byte, and their number n; ok is false if there are none. It updates *skip
// and *left for the next piece.
func intersect(size uint64, skip, left *uint64) (start, n uint64, ok bool) {
	if *skip >= size {
		*skip -= size
		return 0, 0, false
	}
	start, *skip = *skip, 0
	n = min(size-start, *left, math.MaxInt)
	*left -= n
	return start, n, n > 0
}

// dropReferences clears r.pieces and r.local, so that r does not keep the caller's memory reachable.
func (r *reader) dropReferences() {
	clear(r.pieces)
	clear(r.local[:cap(r.local)])
}
