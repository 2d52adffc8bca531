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

// blockedNexts makes the throttle let no bytes through, starts n calls of p.Next, each on its own
// goroutine, and waits until all are blocked. The returned channel receives the message of each
// call, or nil if the call fails.
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

// connectParked opens a pipe, writes inlineMessage(0) at the client, and lets only as many of its
// bytes through the throttle as the argument bytes. It returns that message, which a blocked Next
// of the server has returned before the inline bytes arrived. The server's goroutine that reads
// messages is parked, so that Read can receive those bytes.
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

// TestPolledBlockedNextGetsMessageBeforeItsBytes checks that a blocked call of Next returns a
// message before its inline bytes have arrived. Read then receives them when they arrive.
func TestPolledBlockedNextGetsMessageBeforeItsBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		throttle, client, server, in := connectParked(t, 10_000)
		time.AfterFunc(time.Second, func() { throttle.allow(1 << 40) })
		same(t, inlineMessage(0), in.Descriptor(), read(t, in))
		client.Abort(nil)
		server.Abort(nil)
	})
}

// TestPolledUnreadMessageDelaysNoOther checks that a message that was returned and not read delays
// no other message: blocked and new calls of Next return the later ones at once, and all can be
// read.
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

// TestPolledCloseWithUnreadMessage checks that Close of the sender and Close of the receiver
// succeed while a message has been returned and not read.
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

// TestPolledBothWriteFirst checks that both ends can complete a Write of inline parts before either
// calls Next, and both messages arrive.
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

// TestPolledCloseBeforeNext checks that Close discards messages that have arrived and that no call
// of Next has returned.
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

// TestPolledPeerLostWhileParked checks that if the peer aborts the pipe while a message's inline
// bytes are still missing, Read of that message fails with ErrPeerClosed.
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

// TestPolledReadIntoTarget checks that Read receives inline bytes directly into the caller's
// memory: none are read into buffers of the pipe before the Read, no matter how long the goroutine
// that reads messages was parked for an earlier message.
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

// TestPolledReadyMessageWakesNobody checks that Next returns a message that has already arrived
// without a call of Arm, which would wake a goroutine.
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
