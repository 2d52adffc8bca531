package transport

import "fmt"

// Bounded is a power that some Transports and Conns have besides: to know how long a
// frame can be.
type Bounded interface {
	// LargestFrame is how many bytes a frame may have. WriteFrames writes nothing of
	// a call with a longer one, and returns a [*FrameSizeError].
	LargestFrame() int64
}

// FrameSizeError says that this end wants to write a longer frame than the connection
// carries. Nobody has broken a rule: send less at once, or over another transport.
type FrameSizeError struct {
	Size, Largest int64 // in bytes
}

func (e *FrameSizeError) Error() string {
	return fmt.Sprintf("a frame of %d bytes where the largest has %d", e.Size, e.Largest)
}

// CheckFrame returns a [*FrameSizeError] where via, a Transport or a Conn, does not carry
// frames of size bytes.
func CheckFrame(via any, size int64) error {
	if b, ok := via.(Bounded); ok && size > b.LargestFrame() {
		return &FrameSizeError{Size: size, Largest: b.LargestFrame()}
	}
	return nil
}
