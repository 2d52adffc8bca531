package uv

import (
	"io"
	"net"

	"github.com/tensorpipe-go/tensorpipe/internal/frame"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

const (
	// copyLimit is the size, headers included, up to which a batch is copied
	// into one piece: that costs less than making the kernel gather it.
	copyLimit = 4 << 10

	// keepParts is the number of parts, and of frames, for which a batch keeps
	// its scratch memory; larger ones are rare enough to allocate.
	keepParts = 1024
)

// batch turns frames into as few writes as it can. It keeps its scratch memory
// between calls, so that writing small frames allocates nothing.
type batch struct {
	scratch []byte   // a small batch in one piece, or the headers of a large one
	parts   [][]byte // what is written, in order
	pending net.Buffers
}

// write sends frames to w, which gathers if it is a *net.TCPConn.
func (b *batch) write(w io.Writer, frames []transport.Frame) error {
	total := int64(len(frames)) * frame.HeaderSize
	for _, f := range frames {
		total += frame.Size(f)
	}
	if total <= copyLimit {
		return b.writeCopy(w, frames)
	}
	return b.writeParts(w, frames)
}

func (b *batch) writeCopy(w io.Writer, frames []transport.Frame) error {
	b.scratch = b.scratch[:0]
	for _, f := range frames {
		b.scratch = frame.AppendHeader(b.scratch, frame.Size(f))
		for _, p := range f {
			b.scratch = append(b.scratch, p...)
		}
	}
	if len(b.scratch) == 0 {
		return nil
	}
	_, err := w.Write(b.scratch)
	return err
}

// writeParts gathers headers and memory of the caller. Writing consumes
// pending and, in its elements, parts; the caller's frames stay as they are.
func (b *batch) writeParts(w io.Writer, frames []transport.Frame) error {
	b.collect(frames)
	b.pending = b.parts
	_, err := b.pending.WriteTo(w)
	b.release()
	return err
}

// collect lists what frames consist of on the wire, leaving out empty parts.
// All headers are in scratch before the first part points to it, as scratch
// may move while it grows.
func (b *batch) collect(frames []transport.Frame) {
	b.scratch = b.scratch[:0]
	for _, f := range frames {
		b.scratch = frame.AppendHeader(b.scratch, frame.Size(f))
	}
	headers := b.scratch
	for _, f := range frames {
		b.parts = append(b.parts, headers[:frame.HeaderSize])
		headers = headers[frame.HeaderSize:]
		for _, p := range f {
			if len(p) > 0 {
				b.parts = append(b.parts, p)
			}
		}
	}
}

// release lets go of the caller's memory, and of scratch memory that grew out
// of proportion.
func (b *batch) release() {
	clear(b.parts)
	b.parts, b.pending = b.parts[:0], nil
	if cap(b.parts) > keepParts {
		b.parts = nil
	}
	if cap(b.scratch) > keepParts*frame.HeaderSize {
		b.scratch = nil
	}
}
