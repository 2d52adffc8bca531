package frame

import (
	"io"
	"net"
)

const (
	// copyLimit is the size, headers included, up to which a batch is copied to one buffer. That
	// costs less than a write of several buffers.
	copyLimit = 4 << 10

	// keepParts is the number of parts, and of frames, for which a Batch keeps its memory. Larger
	// batches are rare enough to allocate.
	keepParts = 1024
)

// Batch encodes the frames of one call of WriteFrames and writes them with as few system calls as
// it can; F is the type of a frame. It keeps memory of its own between calls, so that writing small
// frames allocates nothing. It keeps no memory of the caller. One goroutine at a time uses it.
type Batch[F ~[][]byte] struct {
	buf     []byte   // a small batch in one piece, or the headers of a large one
	parts   [][]byte // buffers to write, in order
	pending net.Buffers
}

// Write writes each of frames, as a header and the body, to w. If headers and bodies have at most 4
// KiB in all, it copies them into memory of b and calls Write of w once. Otherwise it copies no
// bodies, and uses writev if w is a socket of package net. It writes nothing if frames is empty. It
// returns w's error, and keeps no reference to the memory of frames.
func (b *Batch[F]) Write(w io.Writer, frames []F) error {
	total := int64(len(frames)) * HeaderSize
	for _, f := range frames {
		total += Size(f)
	}
	b.buf = b.buf[:0]
	if total > copyLimit {
		return b.writeParts(w, frames)
	}
	for _, f := range frames {
		b.buf = AppendHeader(b.buf, Size(f))
		for _, p := range f {
			b.buf = append(b.buf, p...)
		}
	}
	if len(b.buf) == 0 {
		return nil
	}
	_, err := w.Write(b.buf)
	return err
}

// writeParts writes each of frames, as a header and the body, to w without copying the bodies. It
// skips empty parts and does not modify the slices of frames. b.buf and b.parts must be empty.
// Before it returns, it drops all references to the memory of frames, and also the memory of b that
// this call has made too large to keep. It returns w's error.
func (b *Batch[F]) writeParts(w io.Writer, frames []F) error {
	for _, f := range frames { // all headers first, because buf may move when it grows
		b.buf = AppendHeader(b.buf, Size(f))
	}
	headers := b.buf
	for _, f := range frames {
		b.parts = append(b.parts, headers[:HeaderSize])
		headers = headers[HeaderSize:]
		for _, p := range f {
			if len(p) > 0 {
				b.parts = append(b.parts, p)
			}
		}
	}
	b.pending = b.parts
	_, err := b.pending.WriteTo(w)
	clear(b.parts)
	b.parts, b.pending = b.parts[:0], nil
	if cap(b.parts) > keepParts {
		b.parts = nil
	}
	if cap(b.buf) > keepParts*HeaderSize {
		b.buf = nil
	}
	return err
}
