package cudaipc

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// place is memory for one end of a copy.
type place struct {
	name   string
	make   func(f *fixture, size int) device.Buffer // valid on a stream, or without
	stream bool
}

func onDevice(d func(f *fixture) device.Device, stream bool) func(f *fixture, size int) device.Buffer {
	return func(f *fixture, size int) device.Buffer {
		b := f.alloc(size+64, f.stream(d(f))).Slice(32, size)
		if !stream {
			f.synchronize(b.Stream())
			return b.WithStream(nil)
		}
		return b
	}
}

func zero(f *fixture) device.Device { return f.zero }
func one(f *fixture) device.Device  { return f.second() }

func pageable(_ *fixture, size int) device.Buffer { return device.Bytes(make([]byte, size)) }

func segments(_ *fixture, size int) device.Buffer {
	p := make([]byte, size)
	return device.Host(p[:size/3], p[size/3:size/2], p[size/2:])
}

func pinned(d func(f *fixture) device.Device, stream bool) func(f *fixture, size int) device.Buffer {
	return func(f *fixture, size int) device.Buffer {
		b, err := f.AllocHost(size, f.stream(d(f)))
		require.NoError(f, err)
		require.Equal(f, size, b.Len())
		if !stream {
			return b.WithStream(nil)
		}
		return b
	}
}

var places = []place{
	{"device", onDevice(zero, true), true},
	{"device without stream", onDevice(zero, false), false},
	{"peer", onDevice(one, true), true},
	{"peer without stream", onDevice(one, false), false},
	{"pageable", pageable, false},
	{"segments", segments, false},
	{"page-locked", pinned(zero, true), true},
	{"page-locked for the peer", pinned(one, true), true},
	{"page-locked without stream", pinned(zero, false), false},
}

// setBytes writes p to b after the work of the stream.
func (f *fixture) setBytes(b device.Buffer, p []byte) {
	f.Helper()
	if !b.IsHost() {
		if b.Stream() != nil {
			f.write(b, p)
			return
		}
		require.NoError(f, f.Copy(b, device.Bytes(p)))
		return
	}
	if b.Stream() != nil {
		f.synchronize(b.Stream())
	}
	require.NoError(f, device.CopyHost(b.WithStream(nil), device.Bytes(p)))
}

// contents returns the bytes of b after the work of the stream.
func (f *fixture) contents(b device.Buffer) []byte {
	f.Helper()
	if !b.IsHost() {
		return f.read(b)
	}
	if b.Stream() != nil {
		f.synchronize(b.Stream())
	}
	p := make([]byte, b.Len())
	require.NoError(f, device.CopyHost(device.Bytes(p), b))
	return p
}

// Copies between all kinds of memory have the right bytes after the work of both streams, and make no
// call that waits for the device.
func TestCopy(t *testing.T) {
	f := newFixture(t, Options{})
	f.set("CUSIM_DELAY_US", late)
	const size = 3001
	for _, to := range places {
		for _, from := range places {
			name := fmt.Sprintf("from %s to %s", from.name, to.name)
			src, dst := from.make(f, size), to.make(f, size)
			if src.IsHost() && dst.IsHost() && src.Stream() == nil && dst.Stream() == nil {
				require.ErrorIs(t, f.Copy(dst, src), device.ErrMemory)
				continue
			}
			f.setBytes(src, pattern(1, size))
			f.setBytes(dst, pattern(2, size))
			blocking := f.blocking()
			require.NoError(t, f.Copy(dst, src), name)
			require.Equal(t, blocking, f.blocking(), name)
			if src.Stream() != nil || dst.Stream() == nil {
				f.setBytes(src, pattern(3, size)) // after the copy, in stream order
			}
			if dst.Stream() == nil && src.Stream() != nil {
				f.synchronize(src.Stream())
			}
			require.True(t, bytes.Equal(pattern(1, size), f.contents(dst)), name)
		}
	}
}

// A copy begins after the work of both streams, which go on after the copy.
func TestCopyOrder(t *testing.T) {
	f := newFixture(t, Options{})
	f.set("CUSIM_DELAY_US", late)
	const size = 1000
	for _, to := range []place{places[0], places[2], places[6], places[7]} {
		for _, from := range []place{places[0], places[2], places[6], places[7]} {
			src, dst := from.make(f, size), to.make(f, size)
			if src.IsHost() && dst.IsHost() && src.Stream() == nil && dst.Stream() == nil {
				continue
			}
			name := fmt.Sprintf("from %s to %s", from.name, to.name)
			first := f.alloc(size, f.stream(src.Stream().Device()))
			second := f.alloc(size, f.stream(src.Stream().Device()))
			third := f.alloc(size, f.stream(dst.Stream().Device()))
			f.write(first, pattern(1, size))
			f.write(second, pattern(2, size))
			f.write(third, pattern(3, size))
			for _, b := range []device.Buffer{first, second, third} {
				f.synchronize(b.Stream())
			}
			blocking := f.blocking()
			releaseSrc, releaseDst := f.hold(src.Stream().(*Stream)), f.hold(dst.Stream().(*Stream))
			require.NoError(t, f.Copy(src, first.WithStream(src.Stream())))
			require.NoError(t, f.Copy(dst, third.WithStream(dst.Stream())))
			require.NoError(t, f.Copy(dst, src))
			require.NoError(t, f.Copy(src, second.WithStream(src.Stream())))
			require.Equal(t, blocking, f.blocking(), name)
			releaseDst()
			releaseSrc()
			require.True(t, bytes.Equal(pattern(1, size), f.contents(dst)), name)
			require.True(t, bytes.Equal(pattern(2, size), f.contents(src)), name)
		}
	}
}

// Memory of a copy on another stream than its own is not used again before the copy is done.
func TestCopyUsesMemory(t *testing.T) {
	f := newFixture(t, Options{})
	f.set("CUSIM_DELAY_US", late)
	own, other := f.stream(f.zero), f.stream(f.zero)
	src, dst := f.alloc(100, own), f.alloc(100, own)
	f.write(src, pattern(1, 100))
	f.synchronize(own)
	release := f.hold(other)
	require.NoError(t, f.Copy(dst.WithStream(other), src.WithStream(other)))
	memory(src).release()
	memory(dst).release()
	require.Equal(t, 2*blockAlign, f.stats(f.zero).Pending)
	release()
	f.synchronize(other)
	f.alloc(1, own)
	require.Zero(t, f.stats(f.zero).Pending)
}

// Host memory that is too large for staging is copied by the driver, which waits.
func TestCopyOfLargeHostMemory(t *testing.T) {
	f := newFixture(t, Options{})
	s := f.stream(f.zero)
	b := f.alloc(maxStaged+1, s)
	blocking := f.simulator().Blocking()
	p := pattern(1, b.Len())
	require.NoError(t, f.Copy(b, device.Bytes(p)))
	require.Equal(t, blocking+1, f.simulator().Blocking())
	require.True(t, bytes.Equal(p, f.read(b)))
}

// Only host memory that is not page-locked is staged.
func TestCopyStages(t *testing.T) {
	f := newFixture(t, Options{})
	s := f.stream(f.zero)
	b, err := f.AllocHost(100, s)
	require.NoError(t, err)
	to := f.alloc(100, s)
	locked, _ := b.Contiguous()
	require.NoError(t, f.Copy(to, device.Bytes(locked)))
	require.NoError(t, f.Copy(device.Bytes(locked), to))
	require.Equal(t, 1, f.calls("cuMemHostAlloc")-f.hostAllocs)
	require.NoError(t, f.Copy(to, device.Bytes(make([]byte, 100))))
	require.Equal(t, 2, f.calls("cuMemHostAlloc")-f.hostAllocs)
	f.synchronize(s)
}

// Page-locked memory is used again after the work of its stream.
func TestAllocHost(t *testing.T) {
	f := newFixture(t, Options{})
	s := f.stream(f.zero)
	func() {
		b, err := f.AllocHost(100, s)
		require.NoError(t, err)
		require.Equal(t, s, b.Stream())
		p, ok := b.Contiguous()
		require.True(t, ok)
		require.Equal(t, 100, cap(p))
	}()
	pool := &f.gpus[0].pinned
	f.collect(func() bool { pool.mu.Lock(); defer pool.mu.Unlock(); return pool.pending.all() == 1 })
	f.synchronize(s)
	_, err := f.AllocHost(leastPinned, s)
	require.NoError(t, err)
	require.Equal(t, 1, f.calls("cuMemHostAlloc")-f.hostAllocs)
	_, err = f.AllocHost(-1, s)
	require.ErrorIs(t, err, device.ErrSize)
	_, err = f.AllocHost(1, nil)
	require.ErrorIs(t, err, device.ErrStream)
}
