package device

import "fmt"

// cpu is ordinary Go memory: one device, no streams.
type cpu struct{}

// NewCPU returns the kind of host memory: the one device cpu:0, memory from the
// Go heap, no streams. Alloc and Copy refuse a stream with [ErrStream]: host
// memory that is valid on a stream is copied by the kind the stream belongs
// to.
func NewCPU() Kind { return cpu{} }

func (cpu) Name() string { return KindCPU }

func (cpu) Viable() error { return nil }

func (cpu) Devices() []Device { return []Device{CPU()} }

func (cpu) Alloc(d Device, size int, stream Stream) (Buffer, error) {
	switch {
	case d != CPU():
		return Buffer{}, fmt.Errorf("device: alloc on %v by kind cpu: %w", d, ErrDevice)
	case stream != nil:
		return Buffer{}, fmt.Errorf("device: alloc on %v for a stream of %v: %w", d, stream.Device(), ErrStream)
	case size < 0:
		return Buffer{}, fmt.Errorf("device: alloc of %d bytes on %v: %w", size, d, ErrSize)
	}
	return Bytes(make([]byte, size)), nil
}

func (cpu) NewStream(d Device) (Stream, error) {
	if d != CPU() {
		return nil, fmt.Errorf("device: stream on %v by kind cpu: %w", d, ErrDevice)
	}
	return nil, nil
}

func (cpu) Copy(dst, src Buffer) error {
	for _, b := range []Buffer{dst, src} {
		if b.Stream() != nil {
			return fmt.Errorf("device: copy by kind cpu of memory valid on a stream of %v: %w", b.Stream().Device(), ErrStream)
		}
	}
	return CopyHost(dst, src)
}
