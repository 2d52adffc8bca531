package device

// Memory is one contiguous region that the host cannot address, such as GPU
// memory. Each kind has its own concrete type; channels for that kind know it.
type Memory interface {
	// Len is the size of the region in bytes.
	Len() int
}

// Kind is a device kind, supplied by the application as a plug-in.
type Kind interface {
	// Name is the kind's name on the wire.
	Name() string

	// Viable is nil where the kind can be used, or says why not; the error
	// satisfies errors.Is(err, errors.ErrUnsupported).
	Viable() error

	// Devices lists the usable devices of the kind.
	Devices() []Device

	// Alloc returns a buffer of size bytes on d with undefined contents,
	// valid on stream (nil: the kind's default stream). The memory lives at
	// least as long as the buffer is reachable. Misuse is ErrDevice,
	// ErrStream or ErrSize.
	Alloc(d Device, size int, stream Stream) (Buffer, error)

	// NewStream makes a stream on d. A kind without streams returns nil.
	// ErrDevice where d is not of this kind.
	NewStream(d Device) (Stream, error)

	// Copy enqueues a copy of src into dst on dst's stream, behind the work
	// that src's stream holds so far, and makes src's stream wait for the
	// copy. One side may be host memory, the other must be of this kind.
	// The lengths must be equal. Without a stream on either side the copy has
	// happened when Copy returns. Host memory must stay untouched until the
	// copy has happened in stream order. Misuse is ErrMemory, ErrStream or a
	// LengthError, and nothing has been enqueued then.
	Copy(dst, src Buffer) error
}
