package streampool_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/streampool"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
)

// The stream of a message waits for those of its tensors and of the context. Once it has ended, later work on these waits
// for the copies, which may not have begun.
func TestMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kind := delayed.New("npu", 1)
		defer kind.Close()
		kinds := func(string) device.Kind { return kind }
		on := kind.Devices()[0]
		newStream := func() *delayed.Stream {
			s, err := kind.NewStream(on)
			require.NoError(t, err)
			return s.(*delayed.Stream)
		}
		isDone := func(s device.Stream) bool {
			e, err := s.Record()
			require.NoError(t, err)
			synctest.Wait()
			done, err := e.Done()
			require.NoError(t, err)
			return done
		}
		own, current := newStream(), newStream()
		b, err := kind.Alloc(on, 4, own)
		require.NoError(t, err)
		for _, source := range []*delayed.Stream{own, current} {
			var p streampool.Pool
			var m streampool.Message
			release := source.Hold()
			ordered, err := m.Order(device.WithStream(t.Context(), current), &p, kinds, b)
			require.NoError(t, err)
			again, err := m.Order(device.WithStream(t.Context(), current), &p, kinds, b)
			require.NoError(t, err)
			copies := ordered.Stream()
			require.Same(t, copies, again.Stream(), "one for each device")
			require.False(t, isDone(copies))
			release()
			require.True(t, isDone(copies))

			release = copies.(*delayed.Stream).Hold()
			require.True(t, isDone(own) && isDone(current), "they need not wait for the message")
			require.NoError(t, m.End(&p))
			require.False(t, isDone(own) || isDone(current))
			release()
			require.True(t, isDone(own) && isDone(current))
		}
	})
}

// panicking is a stream that panics when it should wait.
type panicking struct{ device.Stream }

func (panicking) WaitFor(device.Stream) error { panic("no wait") }

// failing is a stream that cannot wait.
type failing struct{ device.Stream }

func (failing) WaitFor(device.Stream) error { return errFailing }

var errFailing = errors.New("no wait")

// End returns the error of a stream that cannot wait for the copies, and makes the other streams wait.
func TestStreamFailsAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kind := delayed.New("npu", 1)
		defer kind.Close()
		on := kind.Devices()[0]
		var p streampool.Pool
		var m streampool.Message
		order := func(wrap func(device.Stream) device.Stream) (own, copies *delayed.Stream) {
			s, err := kind.NewStream(on)
			require.NoError(t, err)
			b, err := kind.Alloc(on, 4, s)
			require.NoError(t, err)
			b, err = m.Order(t.Context(), &p, func(string) device.Kind { return kind }, b.WithStream(wrap(s)))
			require.NoError(t, err)
			return s.(*delayed.Stream), b.Stream().(*delayed.Stream)
		}
		order(func(s device.Stream) device.Stream { return failing{s} })
		later, copies := order(func(s device.Stream) device.Stream { return s })
		release := copies.Hold()
		err := m.End(&p)
		require.ErrorIs(t, err, errFailing)
		var failed *future.StreamError
		require.ErrorAs(t, err, &failed)
		require.Equal(t, on, failed.Device)
		e, err := later.Record()
		require.NoError(t, err)
		synctest.Wait()
		done, err := e.Done()
		require.NoError(t, err)
		require.False(t, done, "it waits")
		release()
		require.NoError(t, m.End(&p), "the message has no streams")
	})
}

// After a panic of a stream the streams of the message are in the pool, each once, and the message has none.
func TestPanicAtTheEnd(t *testing.T) {
	kind := delayed.New("npu", 2)
	defer kind.Close()
	var p streampool.Pool
	var m streampool.Message
	var used []device.Stream
	for _, on := range kind.Devices() {
		s, err := kind.NewStream(on)
		require.NoError(t, err)
		b, err := kind.Alloc(on, 4, s)
		require.NoError(t, err)
		b, err = m.Order(t.Context(), &p, func(string) device.Kind { return kind }, b.WithStream(panicking{s}))
		require.NoError(t, err)
		used = append(used, b.Stream())
	}
	require.Panics(t, func() { _ = m.End(&p) })
	require.NoError(t, m.End(&p))
	for i, on := range kind.Devices() {
		times := 0
		for range 64 {
			s, err := p.Get(kind, on)
			require.NoError(t, err)
			if s == used[i] {
				times++
			}
		}
		require.Equal(t, 1, times)
	}
}

// Host memory, memory of an unknown kind, and memory that is valid at once stay as they are.
func TestNothingToOrder(t *testing.T) {
	var p streampool.Pool
	var m streampool.Message
	kind := delayed.New("npu", 1)
	defer kind.Close()
	b, err := kind.Alloc(kind.Devices()[0], 4, nil)
	require.NoError(t, err)
	for _, c := range []struct {
		kind device.Kind
		b    device.Buffer
	}{{kind, device.Bytes(make([]byte, 4))}, {nil, b}, {kind, b.WithStream(nil)}} {
		got, err := m.Order(t.Context(), &p, func(string) device.Kind { return c.kind }, c.b)
		require.NoError(t, err)
		require.Equal(t, c.b, got)
	}
}
