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

// Alloc returns a buffer of size bytes on d that is valid on stream, or on the device's default stream
// if stream is nil. The error matches device.ErrDevice, device.ErrStream, device.ErrSize or
// [ErrClosed].
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

// Write enqueues a copy of p to dst on the stream of dst; p must not be changed until the copy has
// run. The errors are those of Copy.
func (k *Kind) Write(dst device.Buffer, p []byte) error { return k.Copy(dst, device.Bytes(p)) }

// Read enqueues a copy of src to p, which must not be used until the copy has run on the stream of
// src. The errors are those of Copy.
func (k *Kind) Read(p []byte, src device.Buffer) error { return k.Copy(device.Bytes(p), src) }

// Copy enqueues a copy of src to dst as specified by [device.Kind]. The streams may be of other kinds,
// and host memory may be valid on any of them. The error also matches [ErrClosed] after Close.
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

// prepare validates a copy and returns a function that makes it, on the goroutine that calls it. The
// errors are those of Copy.
func (k *Kind) prepare(dst, src device.Buffer) (func() error, error) {
	if err := k.open(); err != nil {
		return nil, err
	}
	if dst.IsHost() && src.IsHost() {
		return nil, fmt.Errorf("delayed: copy by kind %s from host to host: %w", k.name, device.ErrMemory)
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

// copyStream returns the stream of this kind that runs a copy, which prepare has validated: that of
// dst if it is of this kind, else that of src, else the default stream of the device.
func (k *Kind) copyStream(dst, src device.Buffer) *Stream {
	for _, b := range []device.Buffer{dst, src} {
		if s, ok := b.Stream().(*Stream); ok && s.kind == k {
			return s
		}
	}
	if dst.IsHost() {
		return k.defaults[src.Device().Index]
	}
	return k.defaults[dst.Device().Index]
}

// enqueueBetween enqueues f on the stream on, to run after the present work of the streams others and
// before their later work. Elements of others may be nil.
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

// waitFor makes the later work of s wait for the present work of first. It does not block. It does
// nothing if either is nil or they are equal.
func waitFor(s, first device.Stream) error {
	if s == nil || first == nil || s == first {
		return nil
	}
	ev, err := first.Record()
	if err != nil {
		return err
	}
	return s.Wait(ev)
}

// view returns the bytes of b as host memory without copying: b itself if it is host memory. The
// errors are those of memory.
func (k *Kind) view(b device.Buffer) (device.Buffer, error) {
	own, err := k.memory(b)
	if err != nil || own == nil {
		return b, err
	}
	return device.Bytes(own), nil
}

// memory returns the bytes of b, a buffer of this kind, or nil if b is host memory. The error matches
// device.ErrMemory for other memory, and device.ErrStream for a stream of another device.
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

// matches returns nil if memory on d can be valid on s, a stream of the same device or nil; otherwise
// an error that matches device.ErrStream.
func (k *Kind) matches(d device.Device, s device.Stream) error {
	if s == nil {
		return nil
	}
	if own, ok := s.(*Stream); !ok || own.kind != k || own.device != d {
		return fmt.Errorf("delayed: memory of %v on a stream of %v: %w", d, s.Device(), device.ErrStream)
	}
	return nil
}
