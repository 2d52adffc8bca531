package pipe_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// blockedNexts starts n calls of Next and waits until they block.
func blockedNexts(t *testing.T, throttle *throttle, p *pipe.Pipe, n int) <-chan *pipe.Incoming {
	t.Helper()
	throttle.allow(0)
	found := make(chan *pipe.Incoming, n)
	for range n {
		go func() {
			in, _ := p.Next(testContext(t))
			found <- in
		}()
	}
	synctest.Wait()
	return found
}

// connectParked opens a pipe and returns message 0, which the server's reader goroutine
// has received. The reader is parked after it, as the throttle has let only this many of
// its bytes through.
func connectParked(t *testing.T, bytes int) (throttle *throttle, client, server *pipe.Pipe, in *pipe.Incoming) {
	t.Helper()
	throttle = newThrottle(1 << 20)
	client, server = connectPolled(t, throttle)
	found := blockedNexts(t, throttle, server, 1)
	write(t, client, inlineMessage(0))
	throttle.allow(bytes)
	in = <-found
	require.NotNil(t, in)
	return throttle, client, server, in
}

// A blocked call of Next returns a message before its bytes have arrived.
func TestPolledBlockedNextGetsMessageBeforeItsBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		throttle, client, server, in := connectParked(t, 10_000)
		time.AfterFunc(time.Second, func() { throttle.allow(1 << 40) })
		same(t, inlineMessage(0), in.Descriptor(), read(t, in))
		client.Abort(nil)
		server.Abort(nil)
	})
}

// A message that is not read delays other messages neither for blocked nor for new calls
// of Next.
func TestPolledUnreadMessageDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		throttle := newThrottle(1 << 20)
		client, server := connectPolled(t, throttle)
		const count = 3
		found := blockedNexts(t, throttle, server, count-1)
		for i := range count {
			write(t, client, inlineMessage(i))
		}
		throttle.allow(1 << 40)
		begin := time.Now()
		got := map[string]*pipe.Incoming{}
		note := func(in *pipe.Incoming) {
			require.NotNil(t, in)
			got[string(in.Descriptor().Metadata)] = in
		}
		for range count - 1 {
			note(<-found)
		}
		note(next(t, server))
		require.Zero(t, time.Since(begin), "in virtual time")
		for i := range count {
			in := got[string(inlineMessage(i).Metadata)]
			require.NotNil(t, in)
			same(t, inlineMessage(i), in.Descriptor(), read(t, in))
		}
		client.Abort(nil)
		server.Abort(nil)
	})
}

// A message that is not read does not prevent either end from closing.
func TestPolledCloseWithUnreadMessage(t *testing.T) {
	count := map[string]int{"sender": 2, "receiver": 9} // those of the sender fit into the read-ahead limits
	for name, close := range map[string]func(client, server *pipe.Pipe) error{
		"sender":   func(client, _ *pipe.Pipe) error { return client.Close() },
		"receiver": func(_, server *pipe.Pipe) error { return server.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				throttle := newThrottle(1 << 20)
				client, server := connectPolled(t, throttle)
				found := blockedNexts(t, throttle, server, 1)
				for i := range count[name] { // more than the stream has room for
					client.WriteAsync(testContext(t), borrowedMessage(i))
				}
				throttle.allow(1 << 40)
				in := <-found
				require.NotNil(t, in)
				require.NoError(t, close(client, server))
				client.Abort(nil)
				server.Abort(nil)
			})
		})
	}
}

// Two ends may write to each other before they read.
func TestPolledBothWriteFirst(t *testing.T) {
	for name, m := range map[string]*pipe.Message{
		"many small parts": message(1, slices.Repeat([]int{60_000}, 10), nil),
		"large parts":      message(1, []int{500_000}, []int{500_000}),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, server := connectPolled(t, newThrottle(1<<20))
				ops := []*pipe.WriteOp{client.WriteAsync(testContext(t), m), server.WriteAsync(testContext(t), m)}
				for _, op := range ops {
					require.NoError(t, op.Wait(testContext(t)))
				}
				expect(t, server, m)
				expect(t, client, m)
				client.Abort(nil)
				server.Abort(nil)
			})
		})
	}
}

// Close discards messages that have arrived and that no call of Next has returned.
func TestPolledCloseBeforeNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		throttle := newThrottle(1 << 20)
		client, server := connectPolled(t, throttle)
		for i := range 3 {
			write(t, client, inlineMessage(i))
		}
		synctest.Wait()
		require.NoError(t, server.Close())
		client.Abort(nil)
	})
}

// The peer may fail in the middle of a message while the reader is parked.
func TestPolledPeerLostWhileParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, client, server, in := connectParked(t, 40_000)
		client.Abort(errEnough)
		synctest.Wait()
		err := in.Read(testContext(t), pipe.NewAllocation(in.Descriptor()))
		require.ErrorIs(t, err, pipe.ErrPeerClosed)
		server.Abort(nil)
	})
}

// A read receives directly into the caller's memory, however long the reader goroutine was
// parked for another message before.
func TestPolledReadIntoTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		throttle, client, server, in := connectParked(t, 10_000)
		throttle.allow(1 << 40)
		same(t, inlineMessage(0), in.Descriptor(), read(t, in))
		var reading atomic.Bool
		buffered := 0
		throttle.setOnRead(func(n int) {
			if !reading.Load() && n > 8<<10 {
				buffered += n
			}
		})
		for i := range 20 {
			write(t, client, inlineMessage(i))
			in := next(t, server)
			<-time.NewTimer(3 * time.Millisecond).C // the application is busy for a short time
			reading.Store(true)
			same(t, inlineMessage(i), in.Descriptor(), read(t, in))
			reading.Store(false)
		}
		client.Abort(nil)
		server.Abort(nil)
		require.Zero(t, buffered, "bytes received without a read")
	})
}

// Next returns a message that is ready without waking a goroutine at either end.
func TestPolledReadyMessageWakesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		throttle, client, server, in := connectParked(t, 10_000)
		write(t, client, inlineMessage(1))
		time.AfterFunc(time.Second, func() { throttle.allow(1 << 40) })
		read(t, in) // by the reader goroutine, which continues with the next
		synctest.Wait()
		before := throttle.stopCount()
		in = next(t, server)
		require.Equal(t, before, throttle.stopCount())
		same(t, inlineMessage(1), in.Descriptor(), read(t, in))
		client.Abort(nil)
		server.Abort(nil)
	})
}
