// Package frame implements the framing of byte streams that transports share: the length of a frame
// as eight little-endian bytes, then that many bytes of body. An empty frame is the length alone.
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

// ErrBad matches errors about frames that violate the framing. Package transport re-exports it.
var ErrBad = errors.New("bad frame")

// Size returns the number of bytes in parts.
func Size(parts [][]byte) int64 {
	var n int64
	for _, p := range parts {
		n += int64(len(p))
	}
	return n
}

// AppendHeader appends to dst the header of a frame with a body of size bytes, and returns the
// extended slice.
func AppendHeader(dst []byte, size int64) []byte {
	return binary.LittleEndian.AppendUint64(dst, uint64(size))
}

// Reader reads frames from a stream. For each frame a caller calls Next, and then Body until the
// body is read. Only one goroutine uses a Reader. It allocates nothing for a body. If the stream
// has ended within a frame, repeating the call that failed returns the same error.
type Reader struct {
	src    io.Reader
	header [HeaderSize]byte
	have   int   // bytes of header that were read
	left   int64 // bytes of the body not yet read
}

// NewReader returns a Reader of src, which reads no bytes ahead. Its calls return errors of src
// other than io.EOF unchanged.
func NewReader(src io.Reader) *Reader { return &Reader{src: src} }

// Next blocks until the next frame begins and returns the length of its body. It returns io.EOF if
// src ends between two frames, and io.ErrUnexpectedEOF if src ends within a header. The error
// matches ErrBad if the body of the frame before was not read completely, or if the length is
// invalid.
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

// Body fills dst in order with the next bytes of the current frame's body. If the body has fewer
// bytes left it reads nothing and returns an error that matches ErrBad. If src ends before dst is
// full it returns io.ErrUnexpectedEOF.
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
