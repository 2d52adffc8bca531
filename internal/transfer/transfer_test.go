package transfer_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func newTransfer(id uint64) transfer.Transfer {
	t, _ := transfer.New(context.Background(), id, device.Bytes(nil), func(error) {})
	return t
}

// With random pushes and pops, Wait, Pop, Peek, Has and Close of a Queue return the same transfers
// as a slice that models it.
func TestQueueMatchesSlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := transfer.NewQueue()
		var model []uint64
		var next uint64
		for range rapid.IntRange(0, 50).Draw(t, "steps") {
			for range rapid.IntRange(0, 100).Draw(t, "pushes") {
				require.True(t, q.Push(newTransfer(next)))
				model = append(model, next)
				next++
			}
			for range rapid.IntRange(0, len(model)).Draw(t, "pops") {
				front, err := q.Wait(t.Context())
				require.NoError(t, err)
				require.Equal(t, model[0], front.ID)
				require.Equal(t, model[0], q.Pop().ID)
				model = model[1:]
			}
			i := rapid.IntRange(0, len(model)+1).Draw(t, "place")
			tr, ok := q.Peek(i)
			require.Equal(t, i < len(model), ok)
			if ok {
				require.Equal(t, model[i], tr.ID)
				require.True(t, q.Has(tr.ID))
			}
			require.False(t, q.Has(next))
			if len(model) > 0 && model[0] > 0 {
				require.False(t, q.Has(model[0]-1), "popped")
			}
		}
		rest := q.Close()
		require.Len(t, rest, len(model))
		for i, tr := range rest {
			require.Equal(t, model[i], tr.ID)
		}
		require.False(t, q.Push(newTransfer(next)))
		require.Empty(t, q.Close())
	})
}

func TestQueueWait(t *testing.T) {
	q := transfer.NewQueue()
	ctx, cancel := context.WithCancelCause(t.Context())
	got := make(chan uint64)
	go func() {
		tr, _ := q.Wait(ctx)
		got <- tr.ID
	}()
	q.Push(newTransfer(7))
	require.EqualValues(t, 7, <-got)
	q.Pop()

	cancel(io.ErrUnexpectedEOF)
	_, err := q.Wait(ctx)
	require.Equal(t, io.ErrUnexpectedEOF, err)
	q.Push(newTransfer(8))
	_, err = q.Wait(ctx)
	require.Equal(t, io.ErrUnexpectedEOF, err, "the end takes precedence over queued transfers")
}

// After End, Wait returns the transfers that were queued before, and then io.EOF. End wakes a Wait
// that is blocked.
func TestQueueEnd(t *testing.T) {
	q := transfer.NewQueue()
	q.Push(newTransfer(7))
	q.End()
	tr, err := q.Wait(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 7, tr.ID)
	q.Pop()
	_, err = q.Wait(t.Context())
	require.Equal(t, io.EOF, err)

	synctest.Test(t, func(t *testing.T) {
		q := transfer.NewQueue()
		ended := make(chan error, 1)
		go func() {
			_, err := q.Wait(t.Context())
			ended <- err
		}()
		synctest.Wait()
		require.Empty(t, ended)
		q.End()
		require.Equal(t, io.EOF, <-ended)
	})
}

func TestQueueReusesMemory(t *testing.T) {
	q := transfer.NewQueue()
	tr := newTransfer(0)
	for range 1000 { // never empty, as with a slow peer
		q.Push(tr)
	}
	require.Zero(t, testing.AllocsPerRun(10_000, func() {
		q.Push(tr)
		q.Pop()
	}))
}

func TestReady(t *testing.T) {
	k := delayed.New("npu", 1)
	defer k.Close()
	s, err := k.NewStream(k.Devices()[0])
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	begin := func(ctx context.Context, s device.Stream) *transfer.Transfer {
		tr, err := transfer.New(ctx, 1, device.Bytes(nil).WithStream(s), nil)
		require.NoError(t, err)
		return &tr
	}
	atOnce := begin(ctx, nil)
	require.True(t, atOnce.Ready())
	require.NoError(t, atOnce.WaitReady())

	release := s.(*delayed.Stream).Hold()
	late, cancelled := begin(t.Context(), s), begin(ctx, s)
	require.False(t, late.Ready())
	cancel()
	require.ErrorIs(t, cancelled.WaitReady(), context.Canceled)
	release()
	require.NoError(t, late.WaitReady())
	require.True(t, late.Ready())

	require.NoError(t, s.(*delayed.Stream).Launch(func(...[]byte) error { return io.ErrNoProgress }))
	failed := begin(t.Context(), s)
	require.ErrorIs(t, failed.WaitReady(), io.ErrNoProgress)
	require.False(t, failed.Ready(), "the memory of failed work is never ready")

	k.Close()
	_, err = transfer.New(t.Context(), 4, device.Bytes(nil).WithStream(s), nil)
	require.ErrorIs(t, err, delayed.ErrClosed)
}

// Cancel returns the done function of a transfer once, ends the wait for its stream, and leaves the
// transfer in the queue; Drain does not complete it again.
func TestQueueCancel(t *testing.T) {
	k := delayed.New("npu", 1)
	defer k.Close()
	s, err := k.NewStream(k.Devices()[0])
	require.NoError(t, err)
	defer s.(*delayed.Stream).Hold()()

	q := transfer.NewQueue()
	var got []error
	for id := range uint64(3) {
		tr, err := transfer.New(t.Context(), id, device.Bytes(nil).WithStream(s), func(err error) { got = append(got, err) })
		require.NoError(t, err)
		q.Push(tr)
	}
	done, ok := q.Cancel(1)
	require.True(t, ok)
	done(io.EOF)
	for _, id := range []uint64{1, 3} {
		_, ok = q.Cancel(id)
		require.False(t, ok)
	}
	taken, _ := q.Peek(1)
	require.Nil(t, taken.Done)
	require.ErrorIs(t, taken.WaitReady(), context.Canceled)

	l, _, _ := newLifecycle(nil)
	require.NoError(t, l.Close(io.ErrShortWrite))
	l.Drain(q)
	require.Equal(t, []error{io.EOF, io.ErrShortWrite, io.ErrShortWrite}, got)
}

// newLifecycle returns a new Lifecycle whose release function returns released, a channel that
// receives the errors passed to its broken function, and the number of calls of release so far.
func newLifecycle(released error) (l *transfer.Lifecycle, broken chan error, releases *int) {
	broken, releases = make(chan error, 2), new(int)
	return transfer.NewLifecycle(func() error { *releases++; return released }, func(err error) { broken <- err }), broken, releases
}

func TestLifeEndsByFailure(t *testing.T) {
	l, broken, releases := newLifecycle(nil)
	require.NoError(t, l.Err())
	require.NoError(t, l.Context().Err())
	l.Fail(io.EOF)
	l.Fail(io.ErrShortWrite)
	require.Equal(t, io.EOF, <-broken)
	require.Equal(t, io.EOF, l.Err())
	require.Error(t, l.Context().Err())
	require.NoError(t, l.Close(io.ErrShortBuffer))
	require.Equal(t, io.EOF, l.Err(), "the first error stays")
	require.Empty(t, broken)
	require.Equal(t, 1, *releases)
}

func TestLifeEndsByClose(t *testing.T) {
	fault := errors.New("cannot release")
	l, broken, releases := newLifecycle(fault)
	require.Equal(t, fault, l.Close(io.EOF))
	require.Equal(t, fault, l.Close(nil))
	l.Fail(io.ErrShortWrite)
	require.Equal(t, io.EOF, l.Err())
	require.Empty(t, broken)
	require.Equal(t, 1, *releases)
}

func TestLifeWithoutCause(t *testing.T) {
	l, _, _ := newLifecycle(nil)
	require.NoError(t, l.Close(nil))
	require.Equal(t, net.ErrClosed, l.Err())

	l, broken, _ := newLifecycle(nil)
	l.Fail(nil)
	require.Equal(t, net.ErrClosed, <-broken)
}

// Close returns only after the goroutines of Go and CompleteAsync, and a running call of the broken
// function, have ended.
func TestCloseWaits(t *testing.T) {
	for name, begin := range map[string]func(l *transfer.Lifecycle, f func()){
		"Go":    func(l *transfer.Lifecycle, f func()) { l.Go(f) },
		"Later": func(l *transfer.Lifecycle, f func()) { l.CompleteAsync(func(error) { f() }, nil) },
	} {
		l, _, _ := newLifecycle(nil)
		running, finish := make(chan struct{}), make(chan struct{})
		ended := false
		begin(l, func() { close(running); <-finish; ended = true })
		<-running
		go close(finish)
		require.NoError(t, l.Close(io.EOF))
		require.True(t, ended, name)
	}

	told, finish := make(chan struct{}), make(chan struct{})
	ended := false
	l := transfer.NewLifecycle(func() error { return nil }, func(error) { close(told); <-finish; ended = true })
	l.Fail(io.EOF)
	<-told
	go close(finish)
	require.NoError(t, l.Close(nil))
	require.True(t, ended, "Broken")
}

// Close returns only after the release function has returned, even if a concurrent Fail has called
// it.
func TestCloseWaitsForRelease(t *testing.T) {
	releasing, finish := make(chan struct{}), make(chan struct{})
	ended := false
	l := transfer.NewLifecycle(func() error { close(releasing); <-finish; ended = true; return nil }, func(error) {})
	go l.Fail(io.EOF)
	<-releasing
	go close(finish)
	require.NoError(t, l.Close(nil))
	require.True(t, ended)
}

func TestDrain(t *testing.T) {
	l, _, _ := newLifecycle(nil)
	q := transfer.NewQueue()
	var got []error
	for i := range uint64(3) {
		tr, _ := transfer.New(t.Context(), i, device.Bytes(nil), func(err error) { got = append(got, err) })
		q.Push(tr)
	}
	l.Fail(io.EOF)
	l.Drain(q)
	require.Equal(t, []error{io.EOF, io.EOF, io.EOF}, got)
	require.False(t, q.Push(newTransfer(3)))
	require.NoError(t, l.Close(nil))
}
