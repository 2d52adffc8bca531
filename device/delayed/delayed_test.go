package delayed_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func newKind(t *testing.T, n int, opts ...delayed.Option) *delayed.Kind {
	k := delayed.New("npu", n, opts...)
	t.Cleanup(k.Close)
	return k
}

func newStream(t *testing.T, k *delayed.Kind, index int) *delayed.Stream {
	t.Helper()
	s, err := k.NewStream(k.Devices()[index])
	require.NoError(t, err)
	return s.(*delayed.Stream)
}

func alloc(t *testing.T, k *delayed.Kind, n int, s device.Stream) device.Buffer {
	t.Helper()
	b, err := k.Alloc(s.Device(), n, s)
	require.NoError(t, err)
	return b
}

// read waits for the work on b's stream and returns a copy of the bytes of b.
func read(t *testing.T, k *delayed.Kind, b device.Buffer) string {
	t.Helper()
	p := make([]byte, b.Len())
	require.NoError(t, k.Read(p, b))
	require.NoError(t, b.Stream().Synchronize(t.Context()))
	return string(p)
}

func TestKindDescribesItself(t *testing.T) {
	k := newKind(t, 2)
	require.Equal(t, "npu", k.Name())
	require.NoError(t, k.Viable())
	require.Equal(t, []device.Device{{Kind: "npu"}, {Kind: "npu", Index: 1}}, k.Devices())
	require.Equal(t, k.Devices()[1], newStream(t, k, 1).Device())
}

func TestMemoryIsNotHostMemory(t *testing.T) {
	k := newKind(t, 2)
	b, err := k.Alloc(k.Devices()[1], 10, nil)
	require.NoError(t, err)
	require.False(t, b.IsHost())
	require.Equal(t, 10, b.Len())
	require.Equal(t, k.Devices()[1], b.Device())
	require.NotNil(t, b.Stream(), "the default stream")
	mem, _ := b.Memory()
	require.Equal(t, 10, mem.Len())
	require.NotContains(t, read(t, k, b), "\x00", "new memory is not clean")
}

// Work that is enqueued before Hold runs, and work that is enqueued after Hold runs only after the
// release. Waiting for it ends with the context.
func TestHold(t *testing.T) {
	k := newKind(t, 1)
	s := newStream(t, k, 0)
	b := alloc(t, k, 3, s)
	require.NoError(t, k.Write(b, []byte("old")))
	before, err := s.Record()
	require.NoError(t, err)

	release := s.Hold()
	require.NoError(t, k.Write(b, []byte("new")))
	after, err := s.Record()
	require.NoError(t, err)

	require.NoError(t, before.Synchronize(t.Context()), "work before the hold runs")
	done, err := before.Done()
	require.True(t, done)
	require.NoError(t, err)
	done, _ = after.Done()
	require.False(t, done)

	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, after.Synchronize(cancelled), context.Canceled)
	require.ErrorIs(t, s.Synchronize(cancelled), context.Canceled)

	release()
	release()
	require.Equal(t, "new", read(t, k, b))
	require.NoError(t, after.Synchronize(cancelled), "a completed event wins")
}

func TestEventOrdersTwoStreams(t *testing.T) {
	k := newKind(t, 2)
	a, b := newStream(t, k, 0), newStream(t, k, 1)
	var log []string
	note := func(s string) func(...[]byte) error {
		return func(...[]byte) error { log = append(log, s); return nil }
	}
	release := a.Hold()
	require.NoError(t, a.Launch(note("a")))
	ev, err := a.Record()
	require.NoError(t, err)
	require.NoError(t, b.Wait(ev))
	require.NoError(t, b.Launch(note("b")))
	release()
	require.NoError(t, b.Synchronize(t.Context()))
	require.Equal(t, []string{"a", "b"}, log)
}

func TestKernelSeesItsSlice(t *testing.T) {
	k := newKind(t, 1)
	s := newStream(t, k, 0)
	b := alloc(t, k, 6, s)
	require.NoError(t, k.Write(b, []byte("abcdef")))
	upper := func(mem ...[]byte) error {
		for i := range mem[0] {
			mem[0][i] -= 'a' - 'A'
		}
		require.Equal(t, len(mem[1]), cap(mem[1]))
		return nil
	}
	require.NoError(t, s.Launch(upper, b.Slice(2, 3), b.Slice(0, 2)))
	require.Equal(t, "abCDEf", read(t, k, b))
}

// A copy runs after the earlier and before the later work of the streams of both its buffers, also
// if one of them is a stream of another kind, and if host memory has several segments.
func TestCopyObeysBothStreams(t *testing.T) {
	k, other := newKind(t, 2), delayed.New("gpu", 1)
	t.Cleanup(other.Close)
	foreign, err := other.NewStream(other.Devices()[0])
	require.NoError(t, err)
	type side func(s *delayed.Stream) device.Buffer
	onDevice := func(s *delayed.Stream) device.Buffer { return alloc(t, k, 8, s) }
	pinned := func(s *delayed.Stream) device.Buffer {
		return device.Host(make([]byte, 5), make([]byte, 3)).WithStream(s)
	}
	onHost := func(*delayed.Stream) device.Buffer {
		return device.Host(make([]byte, 3), make([]byte, 5)).WithStream(foreign)
	}
	for _, c := range []struct {
		name     string
		dst, src side
	}{
		{"device to device", onDevice, onDevice},
		{"host to device", onDevice, onHost},
		{"device to host", onHost, onDevice},
		{"host to host", pinned, pinned},
		{"host to host of another kind", onHost, pinned},
		{"host of another kind to host", pinned, onHost},
	} {
		t.Run(c.name, func(t *testing.T) {
			from, to := newStream(t, k, 0), newStream(t, k, 1)
			src, dst := c.src(from), c.dst(to)
			release := src.Stream().(*delayed.Stream).Hold()
			releaseTo := dst.Stream().(*delayed.Stream).Hold()
			fill(t, k, src, "new data")
			fill(t, k, dst, "old data")
			require.NoError(t, k.Copy(dst, src))
			fill(t, k, src, "too late")
			release()
			releaseTo()
			require.NoError(t, dst.Stream().Synchronize(t.Context()))
			require.Equal(t, "new data", contents(t, k, dst))
			require.NoError(t, src.Stream().Synchronize(t.Context()))
			require.Equal(t, "too late", contents(t, k, src))
		})
	}
}

// fill enqueues work on b's stream that writes text to b, which may be memory of k or host memory
// with a stream.
func fill(t *testing.T, k *delayed.Kind, b device.Buffer, text string) {
	t.Helper()
	if !b.IsHost() {
		require.NoError(t, k.Write(b, []byte(text)))
		return
	}
	require.NoError(t, b.Stream().(*delayed.Stream).Launch(func(...[]byte) error {
		return device.CopyHost(b, device.Bytes([]byte(text)))
	}))
}

func contents(t *testing.T, k *delayed.Kind, b device.Buffer) string {
	t.Helper()
	if !b.IsHost() {
		return read(t, k, b)
	}
	p := make([]byte, b.Len())
	require.NoError(t, device.CopyHost(device.Bytes(p), b))
	return string(p)
}

func TestCopyWithoutStreamsIsImmediate(t *testing.T) {
	k := newKind(t, 1)
	b := alloc(t, k, 2, newStream(t, k, 0)).WithStream(nil)
	require.NoError(t, k.Write(b, []byte("ab")))
	p := make([]byte, 2)
	require.NoError(t, k.Read(p, b))
	require.Equal(t, "ab", string(p))
}

// A copy works, in both directions, between device memory without a stream and host memory that is
// valid on a stream of another kind.
func TestCopyWithForeignStreamOnly(t *testing.T) {
	k, other := newKind(t, 1), delayed.New("gpu", 1)
	t.Cleanup(other.Close)
	s, err := other.NewStream(other.Devices()[0])
	require.NoError(t, err)
	b := alloc(t, k, 2, newStream(t, k, 0)).WithStream(nil)
	host := device.Bytes([]byte("ab")).WithStream(s)

	require.NoError(t, k.Copy(b, host))
	back := device.Bytes(make([]byte, 2)).WithStream(s)
	require.NoError(t, k.Copy(back, b))
	require.NoError(t, s.Synchronize(t.Context()))
	require.Equal(t, "ab", contents(t, k, back))
}

// After the first failure the later work of a stream is skipped, and the stream and those that wait
// for it report the error. Other streams do not.
func TestFailureSpreads(t *testing.T) {
	k := newKind(t, 1)
	s, waiting, apart := newStream(t, k, 0), newStream(t, k, 0), newStream(t, k, 0)
	ran := false
	require.NoError(t, s.Launch(func(...[]byte) error { return io.ErrUnexpectedEOF }))
	require.NoError(t, s.Launch(func(...[]byte) error { ran = true; return errors.New("second") }))
	ev, err := s.Record()
	require.NoError(t, err)
	require.NoError(t, waiting.Wait(ev))

	require.ErrorIs(t, waiting.Synchronize(t.Context()), io.ErrUnexpectedEOF)
	done, err := ev.Done()
	require.True(t, done)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.False(t, ran, "work behind a failure is skipped")
	require.NoError(t, apart.Synchronize(t.Context()))
}

// The function of WithDelay runs before each copy and kernel on the goroutine of the stream:
// enqueueing does not wait for it, and the work keeps its order.
func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKind(t, 1, delayed.WithDelay(func() { time.Sleep(time.Hour) }))
		s := newStream(t, k, 0)
		b := alloc(t, k, 2, s)
		start := time.Now()
		require.NoError(t, k.Write(b, []byte("ab")))
		require.NoError(t, s.Launch(func(mem ...[]byte) error { mem[0][0] = 'x'; return nil }, b))
		require.Zero(t, time.Since(start), "enqueueing does not wait")
		require.Equal(t, "xb", read(t, k, b))
		require.Equal(t, 3*time.Hour, time.Since(start))
	})
}

func TestMisuse(t *testing.T) {
	k, other := newKind(t, 2), delayed.New("npu", 2)
	t.Cleanup(other.Close)
	zero, one, strange := newStream(t, k, 0), newStream(t, k, 1), newStream(t, other, 0)
	b := alloc(t, k, 4, zero)
	host := device.Bytes(make([]byte, 4))
	kernel := func(...[]byte) error { return nil }
	allocate := func(d device.Device, n int, s device.Stream) error {
		_, err := k.Alloc(d, n, s)
		return err
	}
	mem, _ := b.Memory()
	_, noStream := k.NewStream(device.Device{Kind: "npu", Index: 2})
	for _, c := range []struct {
		name string
		err  error
		want error
	}{
		{"alloc on the host", allocate(device.CPU(), 1, nil), device.ErrDevice},
		{"alloc on a missing device", allocate(device.Device{Kind: "npu", Index: 2}, 1, nil), device.ErrDevice},
		{"alloc on a negative device", allocate(device.Device{Kind: "npu", Index: -1}, 1, nil), device.ErrDevice},
		{"alloc of a negative size", allocate(zero.Device(), -1, nil), device.ErrSize},
		{"alloc on another device's stream", allocate(zero.Device(), 1, one), device.ErrStream},
		{"alloc on another kind's stream", allocate(zero.Device(), 1, strange), device.ErrStream},
		{"stream on a missing device", noStream, device.ErrDevice},
		{"copy from host to host", k.Copy(host, host), device.ErrMemory},
		{"copy from host to host on a stream of another kind", k.Copy(host, host.WithStream(strange)), device.ErrMemory},
		{"copy of another kind's memory", other.Copy(host, b), device.ErrMemory},
		{"copy into another kind's memory", other.Copy(b, host), device.ErrMemory},
		{"copy with the wrong device", k.Copy(host, device.On(one.Device(), mem, one)), device.ErrMemory},
		{"copy on another device's stream", k.Copy(b.WithStream(one), host), device.ErrStream},
		{"copy on another kind's stream", k.Copy(host, b.WithStream(strange)), device.ErrStream},
		{"kernel on host memory", zero.Launch(kernel, host), device.ErrMemory},
		{"kernel on another device's memory", one.Launch(kernel, b), device.ErrMemory},
		{"kernel on another kind's memory", strange.Launch(kernel, b), device.ErrMemory},
	} {
		require.ErrorIs(t, c.err, c.want, c.name)
	}
	var length *device.LengthError
	require.ErrorAs(t, k.Copy(host, b.Slice(0, 3)), &length)
	require.Equal(t, device.LengthError{Dst: 4, Src: 3}, *length)
}

func TestClosedKind(t *testing.T) {
	k := delayed.New("npu", 1)
	s := newStream(t, k, 0)
	b := alloc(t, k, 4, s)
	k.Close()

	_, allocErr := k.Alloc(s.Device(), 1, nil)
	_, streamErr := k.NewStream(s.Device())
	_, recordErr := s.Record()
	for name, err := range map[string]error{
		"alloc": allocErr, "stream": streamErr, "record": recordErr,
		"write": k.Write(b, make([]byte, 4)), "sync": s.Synchronize(t.Context()),
		"wait": s.Wait(nil), "kernel": s.Launch(func(...[]byte) error { return nil }),
		"copy without streams": k.Read(make([]byte, 4), b.WithStream(nil)),
	} {
		require.ErrorIs(t, err, delayed.ErrClosed, name)
	}
	s.Hold()()
}

// Close waits for a kernel that runs, and drops work that has not begun: this work never runs. The
// events of work that waits for a hold, or for another stream, complete with ErrClosed.
func TestCloseDropsPendingWork(t *testing.T) {
	k := delayed.New("npu", 1)
	held, waiting, running := newStream(t, k, 0), newStream(t, k, 0), newStream(t, k, 0)
	held.Hold()
	ran := false
	require.NoError(t, held.Launch(func(...[]byte) error { ran = true; return nil }))
	behindHold, err := held.Record()
	require.NoError(t, err)
	require.NoError(t, waiting.Wait(behindHold))
	behindWait, err := waiting.Record()
	require.NoError(t, err)

	begun, finished := make(chan struct{}), make(chan struct{})
	require.NoError(t, running.Launch(func(...[]byte) error { close(begun); <-finished; return nil }))
	<-begun
	behindKernel, err := running.Record()
	require.NoError(t, err)

	closed := make(chan struct{})
	go func() { k.Close(); close(closed) }()
	for _, ev := range []device.Event{behindHold, behindWait} {
		require.ErrorIs(t, ev.Synchronize(t.Context()), delayed.ErrClosed)
	}
	close(finished)
	<-closed
	done, err := behindKernel.Done()
	require.True(t, done, "Close waits for the kernel")
	require.NoError(t, err, "what has begun is finished")
	require.False(t, ran)
	k.Close()
}

// A released event cannot be used; streams that wait for it already go on to do so.
func TestReleasedEvent(t *testing.T) {
	k := delayed.New("npu", 1)
	defer k.Close()
	a, b := newStream(t, k, 0), newStream(t, k, 0)
	release := a.Hold()
	ev, err := a.Record()
	require.NoError(t, err)
	require.NoError(t, b.Wait(ev))
	ev.Release()
	require.ErrorIs(t, b.Wait(ev), delayed.ErrReleased)
	_, err = ev.Done()
	require.ErrorIs(t, err, delayed.ErrReleased)
	require.ErrorIs(t, ev.Synchronize(t.Context()), delayed.ErrReleased)
	behind, err := b.Record()
	require.NoError(t, err)
	done, err := behind.Done()
	require.NoError(t, err)
	require.False(t, done)
	release()
	require.NoError(t, b.Synchronize(t.Context()))
}

// WaitFor orders a stream after the present work of another one.
func TestWaitFor(t *testing.T) {
	k := delayed.New("npu", 2)
	defer k.Close()
	a, b := newStream(t, k, 0), newStream(t, k, 1)
	require.NoError(t, a.WaitFor(a))
	release := a.Hold()
	require.NoError(t, b.WaitFor(a))
	behind, err := b.Record()
	require.NoError(t, err)
	done, err := behind.Done()
	require.NoError(t, err)
	require.False(t, done)
	release()
	require.NoError(t, behind.Synchronize(t.Context()))
	k.Close()
	require.ErrorIs(t, b.WaitFor(a), delayed.ErrClosed)
}
