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

// sleepers are calls of Next that have looked in vain.
func sleepers(t *testing.T, tap *tap, p *pipe.Pipe, n int) <-chan *pipe.Incoming {
	t.Helper()
	tap.set(0)
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

// foundEarly is a pipe of which the server has message 0 from its own goroutine, which
// parks behind that: of its bytes the tap has let so many through.
func foundEarly(t *testing.T, bytes int) (tap *tap, client, server *pipe.Pipe, in *pipe.Incoming) {
	t.Helper()
	tap = newTap(1 << 20)
	client, server = connectPolled(t, tap)
	found := sleepers(t, tap, server, 1)
	write(t, client, inlineMessage(0))
	tap.set(bytes)
	in = <-found
	require.NotNil(t, in)
	return tap, client, server, in
}

// Who sleeps gets a message before its bytes have come, too.
func TestPolledSleeperGetsItEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tap, client, server, in := foundEarly(t, 10_000)
		time.AfterFunc(time.Second, func() { tap.set(1 << 40) })
		same(t, inlineMessage(0), in.Descriptor(), read(t, in))
		client.Abort(nil)
		server.Abort(nil)
	})
}

// A message that nobody reads keeps none from those who sleep, nor from those who
// come.
func TestPolledUnreadHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tap := newTap(1 << 20)
		client, server := connectPolled(t, tap)
		const count = 3
		found := sleepers(t, tap, server, count-1)
		for i := range count {
			write(t, client, inlineMessage(i))
		}
		tap.set(1 << 40)
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

// Nor does it keep an end from closing, be it the one that has it or the other.
func TestPolledUnreadAndClosed(t *testing.T) {
	count := map[string]int{"sender": 2, "receiver": 9} // a sender's all within the read-ahead
	for name, close := range map[string]func(client, server *pipe.Pipe) error{
		"sender":   func(client, _ *pipe.Pipe) error { return client.Close() },
		"receiver": func(_, server *pipe.Pipe) error { return server.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tap := newTap(1 << 20)
				client, server := connectPolled(t, tap)
				found := sleepers(t, tap, server, 1)
				for i := range count[name] { // more than there is room for
					client.WriteAsync(testContext(t), lentMessage(i))
				}
				tap.set(1 << 40)
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
				client, server := connectPolled(t, newTap(1<<20))
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

// A message that the pipe has returned early and nobody asked for is given up by a
// pipe that closes.
func TestPolledNotAskedForAndClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tap := newTap(1 << 20)
		client, server := connectPolled(t, tap)
		for i := range 3 {
			write(t, client, inlineMessage(i))
		}
		synctest.Wait()
		require.NoError(t, server.Close())
		client.Abort(nil)
	})
}

// The other end of a sleeper may die in the middle of a message.
func TestPolledLostWhileParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, client, server, in := foundEarly(t, 40_000)
		client.Abort(errEnough)
		synctest.Wait()
		err := in.Read(testContext(t), pipe.NewAllocation(in.Descriptor()))
		require.ErrorIs(t, err, pipe.ErrPeerClosed)
		server.Abort(nil)
	})
}

// What is asked for comes straight to the memory that it is to go to, however long
// the pipe's own goroutine has waited for that: it was for another message.
func TestPolledReaderKeepsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tap, client, server, in := foundEarly(t, 10_000)
		tap.set(1 << 40)
		same(t, inlineMessage(0), in.Descriptor(), read(t, in))
		var reading atomic.Bool
		elsewhere := 0
		tap.whenRead(func(n int) {
			if !reading.Load() && n > 8<<10 {
				elsewhere += n
			}
		})
		for i := range 20 {
			write(t, client, inlineMessage(i))
			in := next(t, server)
			<-time.NewTimer(3 * time.Millisecond).C // the application is busy, but not for long
			reading.Store(true)
			same(t, inlineMessage(i), in.Descriptor(), read(t, in))
			reading.Store(false)
		}
		client.Abort(nil)
		server.Abort(nil)
		require.Zero(t, elsewhere, "bytes taken in while nobody read")
	})
}

// Next takes a message that is there as it is: nobody is woken for it, here or at
// the other end.
func TestPolledReadyDisturbsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tap, client, server, in := foundEarly(t, 10_000)
		write(t, client, inlineMessage(1))
		time.AfterFunc(time.Second, func() { tap.set(1 << 40) })
		read(t, in) // by the pipe's own goroutine, which goes on to the next
		synctest.Wait()
		before := tap.minded()
		in = next(t, server)
		require.Equal(t, before, tap.minded())
		same(t, inlineMessage(1), in.Descriptor(), read(t, in))
		client.Abort(nil)
		server.Abort(nil)
	})
}
