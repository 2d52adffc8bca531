// Package frame is the framing that the byte streams share: the length of a
// frame as eight little-endian bytes, then that many bytes of body. A frame
// without a body is the bare length.
package frame

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

// HeaderSize is the number of bytes before each body.
const HeaderSize = 8

// ErrBad matches errors about frames that break the framing. Package transport
// re-exports it.
var ErrBad = errors.New("bad frame")

// Size is the number of bytes in parts.
func Size(parts [][]byte) int64 {
	var n int64
	for _, p := range parts {
		n += int64(len(p))
	}
	return n
}

// AppendHeader appends the header of a frame with a body of size bytes.
func AppendHeader(dst []byte, size int64) []byte {
	return binary.LittleEndian.AppendUint64(dst, uint64(size))
}

// Reader takes frames from a stream. It has the contract of a transport's
// Conn: one goroutine reads, nothing is allocated for a body, and an end
// within a frame stays one however often it is asked for.
type Reader struct {
	src    io.Reader
	header [HeaderSize]byte
	have   int   // bytes of header that came
	left   int64 // bytes of the body not yet read
}

// NewReader returns a Reader of what src yields. Errors of src come back
// unchanged.
func NewReader(src io.Reader) *Reader { return &Reader{src: src} }

// Next waits for the next frame and returns the length of its body. It returns
// io.EOF where src ends between two frames, io.ErrUnexpectedEOF where it ends
// within a header, and an error that matches ErrBad where the last body was
// not read in full or the length is one that no body can have.
func (r *Reader) Next() (int64, error) {
	if r.left > 0 {
		return 0, fmt.Errorf("%w: next frame asked for with %d bytes of the last one unread", ErrBad, r.left)
	}
	n, err := io.ReadFull(r.src, r.header[r.have:])
	r.have += n
	switch {
	case err == io.EOF && r.have > 0:
		return 0, io.ErrUnexpectedEOF
	case err != nil:
		return 0, err
	}
	size := binary.LittleEndian.Uint64(r.header[:])
	if size > math.MaxInt64 {
		return 0, fmt.Errorf("%w: the peer announces one of %d bytes", ErrBad, size)
	}
	r.have, r.left = 0, int64(size)
	return r.left, nil
}

// Body fills dst in order with the next bytes of the body. It returns
// io.ErrUnexpectedEOF where src ends before that, and an error that matches
// ErrBad, without reading, where the body has fewer bytes left.
func (r *Reader) Body(dst ...[]byte) error {
	if want := Size(dst); want > r.left {
		return fmt.Errorf("%w: %d bytes asked for with %d left of the frame", ErrBad, want, r.left)
	}
	for _, p := range dst {
		n, err := io.ReadFull(r.src, p)
		r.left -= int64(n)
		if err == io.EOF {
			return io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
	}
	return nil
}
