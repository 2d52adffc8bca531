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

// Size returns the sum of the lengths of parts in bytes.
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

// NewReader returns a Reader of the frames in src. The Reader takes no bytes from src beyond those
// that the caller asks for. It returns errors of src unchanged, except io.EOF within a frame.
func NewReader(src io.Reader) *Reader { return &Reader{src: src} }

// Next blocks until the header of the next frame has arrived and returns the length of the frame's
// body. If src ends between two frames it returns io.EOF, and if src ends within a header
// io.ErrUnexpectedEOF. If the body of the last frame was not read completely, or the length is
// larger than math.MaxInt64, the error matches ErrBad. Any other error is that of src.
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

// Body fills the slices of dst, in order, with the next bytes of the current frame's body. If the
// body has fewer bytes left, Body reads nothing and returns an error that matches ErrBad. If src
// ends before all are full, it returns io.ErrUnexpectedEOF. Any other error is that of src. After
// an error the contents of dst are undefined.
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
