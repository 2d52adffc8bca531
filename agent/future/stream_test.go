package future_test

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
)

// rig is a device kind with a buffer that holds "old". A write of "new" to it is enqueued on
// a stream that is blocked.
type rig struct {
	*delayed.Kind
	late    device.Buffer
	release func()
}

func newRig(t *testing.T) *rig {
	t.Helper()
	b := &rig{Kind: delayed.New("npu", 2)}
	t.Cleanup(b.Close)
	b.late, b.release = b.lateBuffer(t, 0)
	return b
}

func (b *rig) lateBuffer(t *testing.T, index int) (buf device.Buffer, release func()) {
	t.Helper()
	s := b.stream(t, index)
	buf, err := b.Alloc(s.Device(), 3, s)
	require.NoError(t, err)
	require.NoError(t, b.Write(buf, []byte("old")))
	require.NoError(t, s.Synchronize(t.Context()))
	release = s.Hold()
	require.NoError(t, b.Write(buf, []byte("new")))
	return buf, release
}

func (b *rig) stream(t *testing.T, index int) *delayed.Stream {
	t.Helper()
	s, err := b.NewStream(b.Devices()[index])
	require.NoError(t, err)
	return s.(*delayed.Stream)
}

// read enqueues a read of buf on s, lets the work that can run finish, unblocks the pending write,
// and returns the bytes that the read found: "new" if it waited for the write, "old" if not.
func (b *rig) read(t *testing.T, buf device.Buffer, s device.Stream) string {
	t.Helper()
	p := make([]byte, buf.Len())
	require.NoError(t, b.Read(p, buf.WithStream(s)))
	synctest.Wait()
	b.release()
	require.NoError(t, s.Synchronize(t.Context()))
	return string(p)
}

type buffers = future.Future[device.Buffer]

// TestStreamsWait checks that each function that waits for a future makes the stream of the context
// wait for the work that computes the value. The host does not wait: the work is blocked until
// everything is enqueued.
func TestStreamsWait(t *testing.T) {
	for _, c := range []struct {
		name string
		wait func(context.Context, *buffers) error
	}{
		{"Wait", waitOne},
		{"WaitAll", func(ctx context.Context, f *buffers) error {
			_, err := future.WaitAll(ctx, future.Of(device.Buffer{}), f)
			return err
		}},
		{"Await", func(ctx context.Context, f *buffers) error { return future.Await(ctx, future.Of(1), f) }},
		{"Settle", func(ctx context.Context, f *buffers) error { return future.Settle(ctx, future.Of(1), f) }},
		{"All", func(ctx context.Context, f *buffers) error {
			_, err := future.All(future.Of(device.Buffer{}), f).Wait(ctx)
			return err
		}},
		{"Order", func(ctx context.Context, f *buffers) error {
			<-f.Done()
			return f.Order(device.StreamFrom(ctx, device.Device{Kind: "npu"}))
		}},
		{"a callback", func(ctx context.Context, f *buffers) error {
			done := make(chan error)
			_ = f.OnDone(func(f *buffers) { done <- waitOne(ctx, f) })
			return <-done
		}},
		{"value handed on", func(ctx context.Context, f *buffers) error {
			return waitOne(ctx, future.Then(f, (*buffers).Result))
		}},
		{"value handed on by ThenFuture", func(ctx context.Context, f *buffers) error {
			return waitOne(ctx, future.ThenFuture(f, func(f *buffers) (*buffers, error) {
				b, err := f.Result()
				return future.Of(b), err
			}))
		}},
		{"inner future", func(ctx context.Context, f *buffers) error {
			return waitOne(ctx, future.ThenFuture(future.Of(1), func(*future.Future[int]) (*buffers, error) { return f, nil }))
		}},
	} {
		for _, late := range []bool{false, true} {
			t.Run(c.name+map[bool]string{true: ", begun before"}[late], func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newRig(t)
					s := b.stream(t, 0)
					ctx := device.WithStream(t.Context(), s)
					f := future.New[device.Buffer]()
					if !late {
						require.NoError(t, f.SetOn(b.late, b.late.Stream()))
					}
					done := make(chan error)
					go func() { done <- c.wait(ctx, f) }()
					if late {
						synctest.Wait()
						require.NoError(t, f.SetOn(b.late, b.late.Stream()))
					}
					require.NoError(t, <-done)
					require.Equal(t, "new", b.read(t, b.late, s))
				})
			})
		}
	}
}

func waitOne(ctx context.Context, f *buffers) error {
	_, err := f.Wait(ctx)
	return err
}

// TestThenOnStreams checks that a stream that is passed to Then waits for the value before it runs
// the work of the function, and a stream that waits for the result waits for that work.
func TestThenOnStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newRig(t)
		work, s := b.stream(t, 0), b.stream(t, 0)
		f := future.New[device.Buffer]()
		upper := future.Then(f, func(f *buffers) (device.Buffer, error) {
			buf, err := f.Result()
			if err != nil {
				return buf, err
			}
			return buf.WithStream(work), work.Launch(func(mem ...[]byte) error {
				copy(mem[0], bytes.ToUpper(mem[0]))
				return nil
			}, buf)
		}, work)
		require.NoError(t, f.SetOn(b.late, b.late.Stream()))
		buf, err := upper.Wait(device.WithStream(t.Context(), s))
		require.NoError(t, err)
		require.Equal(t, device.Stream(work), buf.Stream())
		require.Equal(t, "NEW", b.read(t, buf, s))
	})
}

// TestThenOnStreamOfAnotherDevice checks that the function of Then may work on a stream of another
// device than the value's and return the value: a wait for the result still waits for the work that
// computes the value.
func TestThenOnStreamOfAnotherDevice(t *testing.T) {
	for _, flatten := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := newRig(t)
			other, s := b.stream(t, 1), b.stream(t, 0)
			f := future.New[device.Buffer]()
			next := future.Then(f, (*buffers).Result, other)
			if flatten {
				next = future.ThenFuture(f, func(f *buffers) (*buffers, error) {
					buf, err := f.Result()
					return future.Of(buf), err
				}, other)
			}
			require.NoError(t, f.SetOn(b.late, b.late.Stream()))
			_, err := next.Wait(device.WithStream(t.Context(), s))
			require.NoError(t, err)
			require.Equal(t, "new", b.read(t, b.late, s))
		})
	}
}

// TestOrderStreamOfAnotherDevice checks that Wait does not make a stream in the context wait for
// work on another device; Order does.
func TestOrderStreamOfAnotherDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newRig(t)
		far := b.stream(t, 1)
		f := future.New[device.Buffer]()
		require.NoError(t, f.SetOn(b.late, b.late.Stream()))
		require.NoError(t, waitOne(device.WithStream(t.Context(), far), f))
		require.NoError(t, far.Synchronize(t.Context()), "nothing to wait for")

		require.NoError(t, f.Order(far))
		ev, err := far.Record()
		require.NoError(t, err)
		synctest.Wait()
		done, _ := ev.Done()
		require.False(t, done)
		b.release()
		require.NoError(t, ev.Synchronize(t.Context()))
	})
}

// TestValueOnTwoDevices checks that if a value has buffers on two devices, Wait makes the context's
// stream of each device wait for the work on that device.
func TestValueOnTwoDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newRig(t)
		second, release := b.lateBuffer(t, 1)
		s0, s1 := b.stream(t, 0), b.stream(t, 1)
		f := future.New[[]device.Buffer]()
		require.NoError(t, f.SetOn([]device.Buffer{b.late, second}, b.late.Stream(), second.Stream()))
		_, err := f.Wait(device.WithStream(device.WithStream(t.Context(), s0), s1))
		require.NoError(t, err)
		require.Equal(t, "new", b.read(t, b.late, s0))
		b.release = release
		require.Equal(t, "new", b.read(t, second, s1))
	})
}

// TestWaitWithoutStream checks that if the context has no stream, Wait returns at once, and the
// value is valid on the stream of its buffer.
func TestWaitWithoutStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newRig(t)
		f := future.New[device.Buffer]()
		require.NoError(t, f.SetOn(b.late, b.late.Stream()))
		buf, err := f.Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, "new", b.read(t, buf, buf.Stream()))
	})
}

// countingStream counts calls of Record and Wait.
type countingStream struct {
	device.Stream
	records, waits int
}

func (c *countingStream) Record() (device.Event, error) { c.records++; return c.Stream.Record() }
func (c *countingStream) Wait(ev device.Event) error    { c.waits++; return c.Stream.Wait(ev) }

func TestOneEventPerStream(t *testing.T) {
	k := delayed.New("npu", 1)
	t.Cleanup(k.Close)
	newStream := func() *countingStream {
		s, err := k.NewStream(k.Devices()[0])
		require.NoError(t, err)
		return &countingStream{Stream: s}
	}
	s, other := newStream(), newStream()
	f := future.New[int]()
	require.NoError(t, f.SetOn(1, nil, s, s))
	require.Equal(t, 1, s.records, "one per stream, none for nil")
	require.ErrorIs(t, f.SetOn(2, s), future.ErrDone)
	require.Equal(t, 1, s.records, "none if f is done")

	for _, stream := range []*countingStream{s, other} {
		_, err := f.Wait(device.WithStream(t.Context(), stream))
		require.NoError(t, err)
	}
	require.Zero(t, s.waits, "a stream does not wait for itself")
	require.Equal(t, 1, other.waits)

	chain := f
	for range 5 {
		chain = future.Then(chain, plusOne, other)
	}
	require.NoError(t, future.Await(device.WithStream(t.Context(), s), chain))
	require.Equal(t, 1, s.waits, "an event that a later one covers is dropped")

	bad := future.Failed[int](errLost)
	require.NoError(t, bad.Order(other))
	_, err := bad.Wait(device.WithStream(t.Context(), other))
	require.ErrorIs(t, err, errLost)
}

// TestStreamErrors checks that if a stream cannot record an event, SetOn and the result of Then
// fail. If a stream cannot wait, the call that needs it fails, and the future keeps its value.
func TestStreamErrors(t *testing.T) {
	k, broken := delayed.New("npu", 1), delayed.New("npu", 1)
	t.Cleanup(k.Close)
	good, err := k.NewStream(k.Devices()[0])
	require.NoError(t, err)
	bad, err := broken.NewStream(broken.Devices()[0])
	require.NoError(t, err)
	broken.Close()
	requireStreamError := func(op string, err error) {
		t.Helper()
		var stream *future.StreamError
		require.ErrorAs(t, err, &stream)
		require.ErrorIs(t, err, delayed.ErrClosed)
		require.Equal(t, op, stream.Op)
		require.Equal(t, k.Devices()[0], stream.Device)
		require.ErrorContains(t, err, op+" an event on npu:0")
	}

	f := future.New[int]()
	requireStreamError("record", f.SetOn(1, good, bad))
	requireOutcome(t, f, 0, delayed.ErrClosed)

	f = future.New[int]()
	require.NoError(t, f.SetOn(1, good))
	ctx := device.WithStream(t.Context(), bad)
	v, err := f.Wait(ctx)
	requireStreamError("wait", err)
	require.Zero(t, v)
	requireStreamError("wait", f.Order(bad))
	requireStreamError("wait", future.Await(ctx, f))
	requireStreamError("wait", future.Settle(ctx, f))
	requireOutcome(t, f, 1, nil)

	notRun := future.Then(f, func(*future.Future[int]) (int, error) { t.Error("ran before its data"); return 1, nil }, bad)
	_, err = notRun.Wait(t.Context())
	requireStreamError("wait", err)
	lost := future.Then(future.Of(1), plusOne, bad)
	_, err = lost.Wait(t.Context())
	requireStreamError("record", err)
}
