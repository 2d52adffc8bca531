package pipe_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// polledPath returns a path whose streams can be polled and share no connection: shared memory in the
// native dialect.
func polledPath() path { return pathNamed("shm+basic+native") }

// tryUntilNext calls p.TryNext until it returns a message, and returns that message. It fails the
// test if TryNext returns an error or none arrives in time.
func tryUntilNext(t *testing.T, p *pipe.Pipe) *pipe.Incoming {
	t.Helper()
	ctx := testContext(t)
	for ctx.Err() == nil {
		in, err := p.TryNext()
		require.NoError(t, err)
		if in != nil {
			return in
		}
		runtime.Gosched()
	}
	require.Fail(t, "no message arrived")
	return nil
}

// requireNoNext requires that p.TryNext returns neither a message nor an error.
func requireNoNext(t *testing.T, p *pipe.Pipe) {
	t.Helper()
	in, err := p.TryNext()
	require.NoError(t, err)
	require.Nil(t, in)
}

// TestTryNextOfReceivedMessages checks that TryNext returns the messages that the pipe has received,
// or receives itself where the streams share a socket. Calls of TryNext and Next alternate without
// changing the order of messages.
func TestTryNextOfReceivedMessages(t *testing.T) {
	for _, name := range []string{
		"uv+basic+native",
		"uv+basic+compatible",
		"shm+basic+compatible",
	} {
		t.Run(name, func(t *testing.T) {
			client, server := connect(t, pathNamed(name))
			requireNoNext(t, server)
			for i := range 6 {
				m := message(i, []int{10}, []int{10})
				op := client.WriteAsync(testContext(t), m)
				if i%2 == 0 {
					in := tryUntilNext(t, server)
					same(t, m, in.Descriptor(), read(t, in))
				} else {
					expect(t, server, m)
				}
				require.NoError(t, op.Wait(testContext(t)))
				requireNoNext(t, server)
			}
			require.EqualValues(t, 6, server.Stats().Received.Messages)
		})
	}
}

// TestTryNextReturnsNextMessage checks that a message returned by TryNext can be read, is confirmed
// to the sender and is counted, like one that Next returns. It is returned only once.
func TestTryNextReturnsNextMessage(t *testing.T) {
	client, server := connect(t, polledPath())
	requireNoNext(t, server)
	const count = 20
	for i := range count {
		m := message(i, []int{i}, []int{i * 20_000})
		confirmed := testwait.Start(func() error { return client.WriteConfirmed(testContext(t), m) })
		if i%2 == 0 {
			in := tryUntilNext(t, server)
			same(t, m, in.Descriptor(), read(t, in))
		} else {
			expect(t, server, m)
		}
		require.NoError(t, testwait.Finish(t, confirmed))
	}
	requireNoNext(t, server)
	require.EqualValues(t, count, server.Stats().Received.Messages)
}

// TestTryNextWhileNextBlocks checks that while several goroutines call Next and others TryNext,
// each message is returned exactly once.
func TestTryNextWhileNextBlocks(t *testing.T) {
	testwait.Watch(t, 0)
	client, server := connect(t, polledPath())
	count := race.Pick(4000, 800)
	ctx, all := context.WithCancel(testContext(t))
	var mu sync.Mutex
	seen, failed := map[string]int{}, []error(nil)
	record := func(in *pipe.Incoming, err error) {
		if err == nil {
			err = in.Read(ctx, pipe.NewAllocation(in.Descriptor()))
		}
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			failed = append(failed, err)
			all()
			return
		}
		if seen[string(in.Descriptor().Metadata)]++; len(seen) == count {
			all()
		}
	}
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				in, err := server.Next(ctx)
				if ctx.Err() != nil && err != nil {
					return
				}
				record(in, err)
			}
		})
		readers.Go(func() {
			for ctx.Err() == nil {
				if in, err := server.TryNext(); in != nil || err != nil {
					record(in, err)
				}
			}
		})
	}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range count {
		m := message(i, nil, nil)
		m.Metadata = fmt.Append(nil, i)
		if random.IntN(3) == 0 {
			m.Payloads = []pipe.Payload{{Data: pattern(random.IntN(100_000), i)}}
		}
		write(t, client, m)
	}
	readers.Wait()
	require.Empty(t, failed)
	require.Len(t, seen, count)
	for i, n := range seen {
		require.Equal(t, 1, n, i)
	}
	require.EqualValues(t, count, server.Stats().Received.Messages)
}

// TestTryNextWhilePipeCloses checks that a goroutine that calls TryNext all the time does not delay
// a close or abort of either end, and TryNext then returns the same error as Next.
func TestTryNextWhilePipeCloses(t *testing.T) {
	for name, end := range map[string]func(p, peer *pipe.Pipe) error{
		"Close": func(p, peer *pipe.Pipe) error {
			closed := testwait.Start(peer.Close)
			return cmp.Or(p.Close(), <-closed)
		},
		"Abort":        func(p, _ *pipe.Pipe) error { p.Abort(nil); return nil },
		"peer's Close": func(_, peer *pipe.Pipe) error { return peer.Close() },
		"peer's Abort": func(_, peer *pipe.Pipe) error { peer.Abort(nil); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			client, server := connect(t, polledPath())
			ctx, stop := context.WithCancel(testContext(t))
			defer stop()
			polling := make(chan struct{})
			var once sync.Once
			polled := testwait.Start(func() error {
				for ctx.Err() == nil {
					if in, _ := server.TryNext(); in != nil {
						return fmt.Errorf("a message")
					}
					once.Do(func() { close(polling) })
				}
				return nil
			})
			<-polling
			require.NoError(t, end(server, client))
			if name == "peer's Close" {
				require.NoError(t, server.Close())
			}
			testwait.Finish(t, server.Done())
			in, tryErr := server.TryNext()
			require.Nil(t, in)
			stop()
			require.NoError(t, testwait.Finish(t, polled))
			_, err := server.Next(testContext(t))
			require.Error(t, err)
			require.Equal(t, err, tryErr)
		})
	}
}

// TestTryNextAfterAbortedMessage checks that TryNext does not return a message that its sender has
// aborted, and returns the message after it.
func TestTryNextAfterAbortedMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := connect(t, nativePath())
		ctx, cancel := cancelled(t)
		op := client.WriteAsync(ctx, message(1, []int{large}, nil))
		synctest.Wait()
		cancel()
		require.ErrorIs(t, op.Wait(t.Context()), pipe.ErrCancelled)
		m := message(2, []int{5}, nil)
		write(t, client, m)
		synctest.Wait()
		in, err := server.TryNext()
		require.NoError(t, err)
		require.NotNil(t, in)
		same(t, m, in.Descriptor(), read(t, in))
		requireNoNext(t, server)
	})
}
