package delayed

import (
	"bytes"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// initialByte fills new memory, so that code which relies on zeros fails.
const initialByte = 0xa5

// Memory is device memory of one [Kind]. Only copies and kernels of that kind can access its bytes.
type Memory struct {
	kind   *Kind
	device device.Device
	data   []byte
}

// Len returns the size of the memory in bytes.
func (m *Memory) Len() int { return len(m.data) }

// Alloc returns a buffer of size bytes of new memory on d, filled with the byte 0xa5. It is valid
// on stream, or on the default stream of d if stream is nil. The garbage collector frees the
// memory. The error matches device.ErrDevice, device.ErrStream if stream is not on d,
// device.ErrSize if size is negative, or [ErrClosed] after Close.
func (k *Kind) Alloc(d device.Device, size int, stream device.Stream) (device.Buffer, error) {
	s, err := k.defaultStream(d)
	if err != nil {
		return device.Buffer{}, err
	}
	if size < 0 {
		return device.Buffer{}, fmt.Errorf("delayed: alloc of %d bytes on %v: %w", size, d, device.ErrSize)
	}
	if stream == nil {
		stream = s
	}
	if err := k.matches(d, stream); err != nil {
		return device.Buffer{}, err
	}
	m := &Memory{kind: k, device: d, data: bytes.Repeat([]byte{initialByte}, size)}
	return device.On(d, m, stream), nil
}

// Write enqueues a copy of p to dst on the stream of dst, or copies at once if dst has none. The
// caller must not change p until the copy has run. The errors are those of [Kind.Copy].
func (k *Kind) Write(dst device.Buffer, p []byte) error { return k.Copy(dst, device.Bytes(p)) }

// Read enqueues a copy of src to p on the stream of src, or copies at once if src has none. The
// caller must not use p until the copy has run. The errors are those of [Kind.Copy].
func (k *Kind) Read(p []byte, src device.Buffer) error { return k.Copy(device.Bytes(p), src) }

// Copy enqueues a copy of src to dst, to run after the present work and before the later work of the
// streams of both. At least one of the two must be memory of this kind, or host memory that is valid
// on a stream of this kind. Host memory may also be valid on a stream of another kind. If neither has
// a stream, Copy copies before it returns. Otherwise the caller must neither use host memory of dst
// nor change that of src until the copy has run. The kind keeps both reachable until then.
//
// If the two do not fit together or the kind was closed before the call, nothing is enqueued, and
// the error matches device.ErrMemory, device.ErrStream or [ErrClosed], or is a
// [*device.LengthError]. If a stream rejects work during the call, Copy returns the error of the
// stream, and the copy may run nevertheless.
func (k *Kind) Copy(dst, src device.Buffer) error {
	move, err := k.prepare(dst, src)
	if err != nil {
		return err
	}
	if dst.Stream() == nil && src.Stream() == nil {
		return move()
	}
	return enqueueBetween(k.copyStream(dst, src), []device.Stream{dst.Stream(), src.Stream()}, move)
}

// prepare checks that src can be copied to dst, and returns a function that makes the copy when it
// is called, without regard to streams. The errors are those of Copy.
func (k *Kind) prepare(dst, src device.Buffer) (func() error, error) {
	if err := k.open(); err != nil {
		return nil, err
	}
	if dst.IsHost() && src.IsHost() && !k.owns(dst.Stream()) && !k.owns(src.Stream()) {
		return nil, fmt.Errorf("delayed: copy by kind %s from host to host without a stream of it: %w", k.name, device.ErrMemory)
	}
	to, err := k.view(dst)
	if err != nil {
		return nil, err
	}
	from, err := k.view(src)
	if err != nil {
		return nil, err
	}
	if to.Len() != from.Len() {
		return nil, &device.LengthError{Dst: to.Len(), Src: from.Len()}
	}
	return func() error { return device.CopyHost(to, from) }, nil
}

// owns reports whether s is a stream of this kind. It is false for nil.
func (k *Kind) owns(s device.Stream) bool {
	own, ok := s.(*Stream)
	return ok && own.kind == k
}

// copyStream returns the stream of this kind on which a copy of src to dst runs: the stream of dst
// if it is of this kind, else the stream of src if it is, else the default stream of the device of
// dst, or of src if dst is host memory. prepare must have checked the copy.
func (k *Kind) copyStream(dst, src device.Buffer) *Stream {
	for _, s := range []device.Stream{dst.Stream(), src.Stream()} {
		if k.owns(s) {
			return s.(*Stream)
		}
	}
	if dst.IsHost() {
		return k.defaults[src.Device().Index]
	}
	return k.defaults[dst.Device().Index]
}

// enqueueBetween enqueues f on the stream on, to run after the present work of each stream in
// others and before their later work. Elements of others may be nil, or equal to on. The error is
// that of a stream that does not accept work; f may have been enqueued then.
func enqueueBetween(on *Stream, others []device.Stream, f func() error) error {
	for _, s := range others {
		if err := waitFor(on, s); err != nil {
			return err
		}
	}
	if err := on.launch(f); err != nil {
		return err
	}
	for _, s := range others {
		if err := waitFor(s, on); err != nil {
			return err
		}
	}
	return nil
}

// waitFor is s.WaitFor(first). It does nothing and returns nil if one of the two is nil.
func waitFor(s, first device.Stream) error {
	if s == nil || first == nil {
		return nil
	}
	return s.WaitFor(first)
}

// view returns b itself if b is host memory. Otherwise b must be a buffer of this kind, and the
// result is host memory that shares its bytes. After an error, which is one of [Kind.memory], the
// result must not be used.
func (k *Kind) view(b device.Buffer) (device.Buffer, error) {
	own, err := k.memory(b)
	if err != nil || own == nil {
		return b, err
	}
	return device.Bytes(own), nil
}

// memory returns the bytes of b, which must be a buffer of this kind, without copying them. If b is
// host memory it returns nil and no error. The error matches device.ErrMemory if the memory of b is
// not of this kind, and device.ErrStream if b is valid on a stream of another kind or device. The
// bytes must not be used after an error.
func (k *Kind) memory(b device.Buffer) ([]byte, error) {
	if b.IsHost() {
		return nil, nil
	}
	mem, off := b.Memory()
	m, ok := mem.(*Memory)
	if !ok || m.kind != k || m.device != b.Device() {
		return nil, fmt.Errorf("delayed: memory of %v given to kind %s: %w", b.Device(), k.name, device.ErrMemory)
	}
	return m.data[off : off+b.Len() : off+b.Len()], k.matches(b.Device(), b.Stream())
}

// matches returns nil if s is nil or a stream of this kind on d, so that memory on d can be valid
// on it. Otherwise it returns an error that matches device.ErrStream.
func (k *Kind) matches(d device.Device, s device.Stream) error {
	if s == nil {
		return nil
	}
	if own, ok := s.(*Stream); !ok || own.kind != k || own.device != d {
		return fmt.Errorf("delayed: memory of %v on a stream of %v: %w", d, s.Device(), device.ErrStream)
	}
	return nil
}
