package delayed

import (
	"bytes"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// fresh is what new memory holds, so that nobody relies on zeros.
const fresh = 0xa5

// Memory is device memory of one [Kind]. Only kernels see its bytes.
type Memory struct {
	kind   *Kind
	device device.Device
	data   []byte
}

// Len is the size in bytes.
func (m *Memory) Len() int { return len(m.data) }

// Alloc returns memory on d that is valid on stream, or on the device's default
// stream.
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
	m := &Memory{kind: k, device: d, data: bytes.Repeat([]byte{fresh}, size)}
	return device.On(d, m, stream), nil
}

// Write enqueues a copy of p into dst; p must stay untouched until it has
// happened.
func (k *Kind) Write(dst device.Buffer, p []byte) error { return k.Copy(dst, device.Bytes(p)) }

// Read enqueues a copy of src into p, which holds the bytes once src's stream
// has come to it.
func (k *Kind) Read(p []byte, src device.Buffer) error { return k.Copy(device.Bytes(p), src) }

// Copy enqueues a copy as [device.Kind] says. The streams may be of other
// kinds, and a side on the host may be valid on any of them.
func (k *Kind) Copy(dst, src device.Buffer) error {
	move, err := k.prepare(dst, src)
	if err != nil {
		return err
	}
	if dst.Stream() == nil && src.Stream() == nil {
		return move()
	}
	return enqueueBetween(k.carrier(dst, src), []device.Stream{dst.Stream(), src.Stream()}, move)
}

// prepare checks everything that can be wrong with a copy and returns the copy.
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

// carrier picks the stream of this kind that runs a copy: the target's, as far
// as possible.
func (k *Kind) carrier(dst, src device.Buffer) *Stream {
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

// enqueueBetween runs f on the stream on, between the work that the other
// streams hold and the work they get later.
func enqueueBetween(on *Stream, others []device.Stream, f func() error) error {
	for _, s := range others {
		if err := follow(on, s); err != nil {
			return err
		}
	}
	if err := on.launch(f); err != nil {
		return err
	}
	for _, s := range others {
		if err := follow(s, on); err != nil {
			return err
		}
	}
	return nil
}

// follow makes the later work of s wait for the present work of first. Either
// may be nil, and they may be the same.
func follow(s, first device.Stream) error {
	if s == nil || first == nil || s == first {
		return nil
	}
	ev, err := first.Record()
	if err != nil {
		return err
	}
	return s.Wait(ev)
}

// view returns the bytes of b, wherever they lie, as host memory.
func (k *Kind) view(b device.Buffer) (device.Buffer, error) {
	own, err := k.memory(b)
	if err != nil || own == nil {
		return b, err
	}
	return device.Bytes(own), nil
}

// memory returns the bytes of a buffer of this kind, nil for host memory, and an
// error for anything else or a stream that does not fit.
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

// matches checks that memory on d can be valid on s.
func (k *Kind) matches(d device.Device, s device.Stream) error {
	if s == nil {
		return nil
	}
	if own, ok := s.(*Stream); !ok || own.kind != k || own.device != d {
		return fmt.Errorf("delayed: memory of %v on a stream of %v: %w", d, s.Device(), device.ErrStream)
	}
	return nil
}
