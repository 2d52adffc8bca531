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
	pieces  [][]byte
	sources []segment // memory of readChunk
	local   []unix.Iovec
	remote  []unix.RemoteIovec
}

// read copies n bytes at offset off of src, which lists memory of process pid, to the same offset
// of dst, which is host memory. src and dst must have these bytes. r does not retain dst. The error
// is a [*ReadError]; some bytes may have been copied then. The call cannot be interrupted.
func (r *reader) read(pid int, dst device.Buffer, src []segment, off, n int) error {
	r.pieces = dst.AppendSegments(r.pieces[:0])
	defer r.dropReferences()
	return r.readPieces(pid, src, off, n)
}

// readChunk copies the bytes of chunk p from the peer's process into the memory of its tasks. The
// error is a [*ReadError]; some bytes may have been copied then.
func (r *reader) readChunk(p chunk) error {
	if len(p.others) == 0 {
		return r.read(p.pid, p.dst, p.src, p.off, p.n)
	}
	defer r.dropReferences()
	r.pieces = p.dst.AppendSegments(r.pieces[:0])
	r.sources = append(r.sources[:0], p.src...)
	for _, j := range p.others {
		r.pieces = j.dst.AppendSegments(r.pieces)
		r.sources = append(r.sources, j.src...)
	}
	return r.readPieces(p.pid, r.sources, 0, p.size())
}

// readPieces copies n bytes at offset off of src, which lists memory of process pid, to the same
// offset of r.pieces, the destination. The error is a [*ReadError]; some bytes may have been copied
// then. The call cannot be interrupted.
func (r *reader) readPieces(pid int, src []segment, off, n int) error {
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

// setVectors sets r.local to the n bytes at offset off of r.pieces, and r.remote to the same bytes
// of src, as arguments of process_vm_readv. Each list gets at most maxPieces pieces, and fewer
// bytes if more pieces would be needed. The system then copies at most the bytes of the shorter
// list.
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

// intersect determines which bytes of a piece of memory are within a range. The piece has size
// bytes. The range begins *skip bytes after the start of the piece and has *left bytes. intersect
// returns the offset in the piece of the first byte within the range, and the number n of such
// bytes; ok is false if there are none. It subtracts from *skip and *left the bytes that it has
// passed, for the piece that follows.
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
