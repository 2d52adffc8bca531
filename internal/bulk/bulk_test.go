package bulk_test

import (
	"context"
	"io"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/internal/bulk"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Transfers of many sizes complete correctly, on two lanes and in both directions at once, even if
// each end begins them in another order and with other pieces of memory.
func TestAnyOrder(t *testing.T) {
	sizes := []int{1, 7, 4096, 65_512, 65_513, 1 << 20, 1<<20 + 1, 3<<20 + 5}
	onEachKind(t, func(t *testing.T, connect func(testing.TB) (one, other transport.Stream)) {
		for _, checksum := range []bool{false, true} {
			one, other := connect(t)
			a, b := pair(t, one, other, checksum)
			var checks []func()
			for lane := range uint16(2) {
				from, to := a.Lane(lane), b.Lane(lane)
				checks = append(checks, exchange(t, from, to, sizes), exchange(t, to, from, sizes))
			}
			for _, check := range checks {
				check()
			}
			require.NoError(t, a.Close(nil))
			require.NoError(t, b.Close(nil))
			require.Empty(t, a.broken)
		}
	})
}

// exchange begins a transfer of each of the sizes, at both ends. check waits until all have
// succeeded and compares the bytes.
func exchange(t *testing.T, from, to channel.Channel, sizes []int) (check func()) {
	var outcomes []<-chan error
	dsts := make([][]byte, len(sizes))
	for i, n := range sizes {
		p := numbered(n)
		done, err := result()
		from.Send(uint64(i)<<40, device.Host(p[:n/3], p[n/3:n/2], nil, p[n/2:]), done)
		outcomes = append(outcomes, err)
	}
	for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(len(sizes)) {
		dsts[i] = make([]byte, sizes[i])
		done, err := result()
		to.Recv(uint64(i)<<40, device.Host(dsts[i][:sizes[i]/2], dsts[i][sizes[i]/2:]), done)
		outcomes = append(outcomes, err)
	}
	return func() {
		t.Helper()
		for _, err := range outcomes {
			require.NoError(t, testwait.Finish(t, err))
		}
		for i, n := range sizes {
			wantBytes(t, numbered(n), dsts[i])
		}
	}
}

// Transfers take turns: a short one completes before a long one that began earlier.
func TestTurns(t *testing.T) {
	onEachKind(t, func(t *testing.T, connect func(testing.TB) (one, other transport.Stream)) {
		one, other := connect(t)
		e, peer := newEnd(t, one, bulk.Config{}), raw{t, other}
		ch := e.Lane(5)
		long, short := make([]byte, 4<<20), make([]byte, 10)
		done := [...]<-chan error{send(ch, 1, long), send(ch, 2, short)}
		e.HandleReady(5, 1)
		peer.read(1) // the first chunk is on its way
		e.HandleReady(5, 2)
		go io.Copy(io.Discard, peer)
		require.NoError(t, testwait.Finish(t, done[1]))
		require.NoError(t, testwait.Finish(t, done[0]))
	})
}

// The stream is opened once, when a transfer needs it, and no goroutine runs before that.
func TestOpensWhenNeeded(t *testing.T) {
	for name, need := range map[string]func(e *end){
		"Recv": func(e *end) { recv(e.Lane(0), 1, make([]byte, 1)) },
		"Send": func(e *end) { send(e.Lane(0), 1, make([]byte, 1)); e.HandleReady(0, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			one, other := tcp(t)
			opened := make(chan bool, 2)
			e := newEnd(t, one, bulk.Config{Open: func(context.Context) (transport.Stream, error) {
				opened <- true
				return one, nil
			}})
			defer other.Close()
			before := runtime.NumGoroutine()
			idle := e.Lane(1)
			send(idle, 1, make([]byte, 1)) // not asked for
			e.HandleReady(1, 2)
			require.Same(t, idle, e.Lane(1))
			require.NoError(t, idle.Close(nil))
			require.Empty(t, opened)
			require.LessOrEqual(t, runtime.NumGoroutine(), before)

			need(e)
			require.True(t, testwait.Finish(t, opened))
			recv(e.Lane(2), 2, make([]byte, 1))
			require.NoError(t, e.Close(nil))
			require.Empty(t, opened)
		})
	}
}

func TestCannotOpen(t *testing.T) {
	one, _ := tcp(t)
	e := newEnd(t, one, bulk.Config{Open: func(context.Context) (transport.Stream, error) { return nil, errTest }})
	ch := e.Lane(0)
	outcome := recv(ch, 1, make([]byte, 1))
	require.ErrorIs(t, testwait.Finish(t, outcome), errTest)
	require.ErrorIs(t, e.wantBroken(t), errTest)
	require.ErrorIs(t, testwait.Finish(t, send(ch, 1, make([]byte, 1))), errTest)
	require.ErrorIs(t, testwait.Finish(t, recv(ch, 2, nil)), errTest)
}

// Close while Config.Open is in progress ends its context, and closes a stream that Open returns
// nevertheless.
func TestCloseWhileOpening(t *testing.T) {
	for _, late := range []bool{false, true} {
		one, other := tcp(t)
		begun := make(chan bool, 1)
		e := newEnd(t, one, bulk.Config{Open: func(ctx context.Context) (transport.Stream, error) {
			begun <- true
			<-ctx.Done()
			if late {
				return one, nil
			}
			return nil, context.Cause(ctx)
		}})
		outcome := recv(e.Lane(0), 1, make([]byte, 1))
		<-begun
		require.NoError(t, e.Close(errTest))
		require.Equal(t, errTest, <-outcome)
		require.Empty(t, e.broken)
		if late {
			_, err := other.Read(make([]byte, 1))
			require.Equal(t, io.EOF, err)
		}
	}
}

// Closing a lane ends its transfers in any state, and no others.
func TestCloseLane(t *testing.T) {
	onEachKind(t, func(t *testing.T, connect func(testing.TB) (one, other transport.Stream)) {
		one, other := connect(t)
		e, peer := newEnd(t, one, bulk.Config{}), raw{t, other}
		closing, staying := e.Lane(0), e.Lane(1)
		ends := []<-chan error{
			send(closing, 1, make([]byte, 16<<20)),
			send(closing, 2, make([]byte, 10)),
			recv(closing, 1, make([]byte, 10)),
			recv(closing, 2, make([]byte, 10)),
		}
		stays := []<-chan error{recv(staying, 1, make([]byte, 10)), send(staying, 1, make([]byte, 10))}
		e.HandleReady(0, 1)
		peer.read(1) // and so writes it
		peer.write(chunk(0, 1, make([]byte, 10), 0, false)[:20])

		require.NoError(t, closing.Close(errTest))
		for _, outcome := range append(ends, send(closing, 3, nil), recv(closing, 3, make([]byte, 1))) {
			require.Equal(t, errTest, testwait.Finish(t, outcome))
		}
		require.NoError(t, closing.Close(nil))
		closing.Abort(1, nil)

		e.HandleReady(1, 1)
		drained := testwait.Start(func() error { _, err := io.Copy(io.Discard, peer); return err })
		peer.write(chunk(0, 1, make([]byte, 10), 0, false)[20:])
		peer.write(chunk(1, 1, make([]byte, 10), 0, false))
		for _, outcome := range stays {
			require.NoError(t, testwait.Finish(t, outcome))
		}
		require.NoError(t, e.Close(nil))
		_ = testwait.Finish(t, drained)
		require.Empty(t, e.broken)
	})
}

func TestMisuse(t *testing.T) {
	one, _ := tcp(t)
	e := newEnd(t, one, bulk.Config{})
	kind := delayed.New("npu", 1)
	t.Cleanup(kind.Close)
	stream, err := kind.NewStream(kind.Devices()[0])
	require.NoError(t, err)
	away, err := kind.Alloc(kind.Devices()[0], 10, stream)
	require.NoError(t, err)
	require.NoError(t, stream.(*delayed.Stream).Launch(func(...[]byte) error { return io.ErrNoProgress }))
	ch := e.Lane(0)
	first := send(ch, 1, make([]byte, 1))
	require.ErrorIs(t, testwait.Finish(t, send(ch, 1, make([]byte, 1))), bulk.ErrBusy)
	for want, buf := range map[error]device.Buffer{
		device.ErrMemory: away,
		io.ErrNoProgress: device.Bytes(make([]byte, 10)).WithStream(stream),
	} {
		for _, begin := range []func(uint64, device.Buffer, func(error)){ch.Send, ch.Recv} {
			done, outcome := result()
			begin(2, buf, done)
			require.ErrorIs(t, testwait.Finish(t, outcome), want)
		}
	}
	ch.Abort(1, nil)
	require.Equal(t, channel.ErrClosed, testwait.Finish(t, first))
	require.Empty(t, e.broken)
}

// A transfer whose device stream is busy does not delay other transfers.
func TestStreamsDoNotWaitForEachOther(t *testing.T) {
	kind := delayed.New("npu", 1)
	t.Cleanup(kind.Close)
	held := func() (device.Buffer, func()) {
		s, err := kind.NewStream(kind.Devices()[0])
		require.NoError(t, err)
		return device.Bytes(make([]byte, 10)).WithStream(s), s.(*delayed.Stream).Hold()
	}
	one, other := tcp(t)
	a, b := pair(t, one, other, false)
	from, to := a.Lane(0), b.Lane(0)
	src, releaseSrc := held()
	dst, releaseDst := held()
	sent, sendErr := result()
	received, recvErr := result()
	from.Send(1, src, sent)
	to.Recv(1, dst, received)
	exchange(t, from, to, []int{100})()
	require.Empty(t, sendErr)
	require.Empty(t, recvErr)

	releaseDst()
	exchange(t, from, to, []int{100})()
	require.Empty(t, recvErr, "the sender's stream is busy")
	releaseSrc()
	require.NoError(t, testwait.Finish(t, sendErr))
	require.NoError(t, testwait.Finish(t, recvErr))
}

// Abort of a transfer does not wait for the device stream of its memory, and no READY is sent for
// the transfer afterwards.
func TestAbortWhileStreamIsBusy(t *testing.T) {
	kind := delayed.New("npu", 1)
	t.Cleanup(kind.Close)
	s, err := kind.NewStream(kind.Devices()[0])
	require.NoError(t, err)
	release := s.(*delayed.Stream).Hold()
	one, _ := tcp(t)
	e := newEnd(t, one, bulk.Config{Ready: func(uint16, uint64) { t.Error("ready") }})
	ch := e.Lane(0)
	for _, begin := range []func(uint64, device.Buffer, func(error)){ch.Send, ch.Recv} {
		done, outcome := result()
		begin(1, device.Bytes(make([]byte, 10)).WithStream(s), done)
		ch.Abort(1, errTest)
		require.Equal(t, errTest, testwait.Finish(t, outcome))
	}
	release()
	require.NoError(t, e.Close(nil))
}
