package cma

import (
	"io"
	"math"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/step"
)

// maxPieces is the number of pieces that one system call takes.
const maxPieces = 1024

// reader reads the memory of other processes. The zero value is ready; it keeps
// its scratch memory from one read to the next.
type reader struct {
	pieces [][]byte
	local  []unix.Iovec
	remote []unix.RemoteIovec
}

// read fills dst[off:off+n] with the same bytes of src, which lies in process
// pid. The error is a [*ReadError].
func (r *reader) read(pid int, dst device.Buffer, src []segment, off, n int) error {
	r.pieces = dst.AppendSegments(r.pieces[:0])
	defer r.forget()
	for end := off + n; off < end; {
		r.aim(src, off, end-off)
		step.Here()
		got, err := unix.ProcessVMReadv(pid, r.local, r.remote, 0)
		if err == nil && got <= 0 {
			err = io.ErrNoProgress
		}
		if err != nil {
			return &ReadError{PID: pid, Err: err}
		}
		off += got // less than all where there are too many pieces
	}
	return nil
}

// aim prepares the system call for n bytes at off. Where the two lists are of
// different sizes the system reads the smaller one.
func (r *reader) aim(src []segment, off, n int) {
	r.local, r.remote = r.local[:0], r.remote[:0]
	skip, left := uint64(off), uint64(n)
	for _, p := range r.pieces {
		start, size, ok := overlap(uint64(len(p)), &skip, &left)
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
		start, size, ok := overlap(s.size, &skip, &left)
		if ok {
			r.remote = append(r.remote, unix.RemoteIovec{Base: uintptr(s.address + start), Len: int(size)})
		}
		if left == 0 || len(r.remote) == maxPieces {
			break
		}
	}
}

// overlap says which part of a piece belongs to what is left to be read, behind
// what is left to be skipped.
func overlap(size uint64, skip, left *uint64) (start, n uint64, ok bool) {
	if *skip >= size {
		*skip -= size
		return 0, 0, false
	}
	start, *skip = *skip, 0
	n = min(size-start, *left, math.MaxInt)
	*left -= n
	return start, n, n > 0
}

// forget lets go of the caller's memory.
func (r *reader) forget() {
	clear(r.pieces)
	clear(r.local[:cap(r.local)])
}
