package cudaipc

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
)

func TestEvents(t *testing.T) {
	f := newFixture(t, Options{})
	s := f.stream(f.zero)
	require.Equal(t, f.zero, s.Device())
	release := f.hold(s)
	empty, err := f.stream(f.zero).Record()
	require.NoError(t, err)
	require.NoError(t, f.Sleep(s, 1))
	ev, err := s.Record()
	require.NoError(t, err)
	done, err := ev.Done()
	require.NoError(t, err)
	require.False(t, done)
	require.NoError(t, empty.Synchronize(t.Context()))

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, ev.Synchronize(ended), context.Canceled)
	late, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.Synchronize(late), context.DeadlineExceeded)
	release()
	require.NoError(t, ev.Synchronize(t.Context()))
	done, err = ev.Done()
	require.NoError(t, err)
	require.True(t, done)
}

// Streams wait for events of their own device and of others, also after the event is released and
// used again.
func TestStreamsWait(t *testing.T) {
	f := newFixture(t, Options{})
	first, other := f.stream(f.zero), f.stream(f.zero)
	for _, d := range []device.Device{f.zero, f.second()} {
		second, third := f.stream(d), f.stream(d)
		release := f.hold(first)
		require.NoError(t, f.Sleep(first, 1))
		ev, err := first.Record()
		require.NoError(t, err)
		require.NoError(t, second.Wait(ev))
		require.NoError(t, third.WaitFor(first))
		ev.Release()
		again, err := other.Record()
		require.NoError(t, err)
		require.Equal(t, ev.(*Event).handle, again.(*Event).handle, "the event is used again")
		require.NoError(t, again.Synchronize(t.Context()))
		for _, s := range []*Stream{second, third} {
			queued, err := f.simulator().Queued(uintptr(s.Handle()))
			require.NoError(t, err)
			require.Positive(t, queued)
		}
		release()
		f.synchronize(second)
		f.synchronize(third)
		again.Release()
	}
	require.NoError(t, first.WaitFor(first))
	if race.Enabled {
		return // sync.Pool forgets values then, so that calls of the driver allocate
	}
	allocs := testing.AllocsPerRun(100, func() { require.NoError(t, first.WaitFor(other)) })
	require.Zero(t, allocs)
}

// Recording creates no further events, and neither do events that become unreachable.
func TestEventsAreReused(t *testing.T) {
	f := newFixture(t, Options{})
	s := f.stream(f.zero)
	f.synchronize(s)
	calls := f.calls("cuEventCreate")
	for range 100 {
		f.synchronize(s)
	}
	require.Equal(t, calls, f.calls("cuEventCreate"))
	func() {
		_, err := s.Record()
		require.NoError(t, err)
	}()
	g := f.gpus[0]
	f.collect(func() bool { g.mu.Lock(); defer g.mu.Unlock(); return len(g.events) == 1 })
}

// collect collects garbage until the condition is true.
func (f *fixture) collect(condition func() bool) {
	f.Helper()
	for !condition() {
		require.NoError(f, f.Context().Err())
		runtime.GC()
	}
}

// A stream that becomes unreachable is used again.
func TestStreamsAreReused(t *testing.T) {
	f := newFixture(t, Options{})
	var handle driver.Stream
	func() { handle = f.stream(f.zero).Handle() }()
	g := f.gpus[0]
	f.collect(func() bool { g.mu.Lock(); defer g.mu.Unlock(); return len(g.streams) == 1 })
	require.Equal(t, handle, f.stream(f.zero).Handle())
}

// Streams of the Kind do not wait for those of other kinds, for which the driver has no way.
func TestStreamsOfOtherKinds(t *testing.T) {
	f := newFixture(t, Options{})
	k := delayed.New("npu", 1)
	t.Cleanup(k.Close)
	strange, err := k.NewStream(k.Devices()[0])
	require.NoError(t, err)
	ev, err := strange.Record()
	require.NoError(t, err)
	s := f.stream(f.zero)
	require.ErrorIs(t, s.Wait(ev), device.ErrStream)
	require.ErrorIs(t, s.WaitFor(strange), device.ErrStream)
	require.ErrorIs(t, s.WaitFor(nil), device.ErrStream)
	require.ErrorIs(t, s.Wait(nil), device.ErrStream)
}

// Errors of the driver are returned, and events are not lost.
func TestStreamErrors(t *testing.T) {
	f := newFixture(t, Options{})
	s := f.stream(f.zero)
	f.set("CUSIM_FAIL", "cuEventRecord:1")
	_, err := s.Record()
	require.ErrorIs(t, err, driver.ResultInvalidValue)
	var call *driver.CallError
	require.ErrorAs(t, err, &call)
	require.Equal(t, "cuEventRecord", call.Call)
	require.Error(t, s.Synchronize(t.Context()))
	require.Len(t, f.gpus[0].events, 1)
	f.set("CUSIM_FAIL", "cuStreamCreate:2")
	_, err = f.NewStream(f.zero)
	require.ErrorIs(t, err, driver.ResultOutOfMemory)
	f.set("CUSIM_FAIL", "")
	ev, err := s.Record()
	require.NoError(t, err)
	f.set("CUSIM_FAIL", "cuEventQuery:700")
	done, err := ev.Done()
	require.True(t, done)
	require.ErrorIs(t, err, driver.ResultIllegalAddress)
	require.ErrorIs(t, s.Synchronize(t.Context()), driver.ResultIllegalAddress)
}
