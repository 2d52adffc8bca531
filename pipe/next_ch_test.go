package pipe_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// inBothDialects runs f once for each dialect, as a subtest in virtual time (testing/synctest),
// with the two ends of a new pipe.
func inBothDialects(t *testing.T, f func(t *testing.T, client, server *pipe.Pipe)) {
	for _, p := range []path{nativePath(), memPath()} {
		t.Run(string(p.dialect), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, server := connect(t, p)
				f(t, client, server)
			})
		})
	}
}

// nextLater calls p.Next in a new goroutine and returns a channel. The channel receives the message
// if Next returns one, and is then closed.
func nextLater(t *testing.T, p *pipe.Pipe) <-chan *pipe.Incoming {
	out := make(chan *pipe.Incoming, 1)
	go func() {
		in, err := p.Next(t.Context())
		if err == nil {
			out <- in
		}
		close(out)
	}()
	return out
}

// TestNextChReceivesWhileNextBlocks checks that a goroutine that receives from NextCh gets the next
// message even if a call of Next has waited longer. The call of Next gets the message after it.
func TestNextChReceivesWhileNextBlocks(t *testing.T) {
	inBothDialects(t, func(t *testing.T, client, server *pipe.Pipe) {
		next := nextLater(t, server)
		synctest.Wait()
		ahead := make(chan *pipe.Incoming, 1)
		go func() { ahead <- <-server.NextCh() }()
		synctest.Wait()
		write(t, client, message(1, []int{10}, nil))
		in := <-ahead
		same(t, message(1, []int{10}, nil), in.Descriptor(), read(t, in))
		synctest.Wait() // the reader releases read-ahead budget after the delivery
		require.Empty(t, next)
		require.Zero(t, server.Stats().BytesReadAhead)

		write(t, client, message(2, []int{20}, nil))
		in = <-next
		require.NotNil(t, in)
		same(t, message(2, []int{20}, nil), in.Descriptor(), read(t, in))
		require.EqualValues(t, 2, server.Stats().Received.Messages)
	})
}

// TestNextChKeepsTheOrder checks that a receiver from NextCh gets no message while earlier ones
// have not been returned by Next.
func TestNextChKeepsTheOrder(t *testing.T) {
	inBothDialects(t, func(t *testing.T, client, server *pipe.Pipe) {
		write(t, client, message(1, []int{1}, nil))
		synctest.Wait()
		received := make(chan struct{})
		stop := make(chan struct{})
		go func() {
			defer close(received)
			select {
			case <-server.NextCh():
				t.Error("a message overtook others")
			case <-stop:
			}
		}()
		synctest.Wait()
		write(t, client, message(2, []int{2}, nil))
		synctest.Wait()
		close(stop)
		<-received
		expect(t, server, message(1, []int{1}, nil))
		expect(t, server, message(2, []int{2}, nil))
	})
}

// TestNextChAfterAbort checks that a message that its sender aborts before it is returned is
// returned neither by Next nor by NextCh. The messages around it are.
func TestNextChAfterAbort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := connect(t, nativePath(), func(o *pipe.Options) { o.Limits.ReadAheadBytes = 1 })
		for i := range 2 {
			write(t, client, message(i, []int{10}, nil))
		}
		synctest.Wait() // the first was read, the second waits for read-ahead budget, later ones are not read
		ctx, cancel := context.WithCancel(testContext(t))
		aborted := client.WriteAsync(ctx, message(2, nil, []int{4 << 20}))
		synctest.Wait()
		cancel()
		require.ErrorIs(t, aborted.Wait(testContext(t)), context.Canceled)
		write(t, client, message(3, []int{10}, nil))
		synctest.Wait() // the abort has arrived

		got, stop := make(chan *pipe.Incoming, 4), make(chan struct{})
		for range 4 { // so that one is receiving at any time
			go func() {
				for {
					select {
					case in := <-server.NextCh():
						got <- in
					case <-stop:
						return
					}
				}
			}()
		}
		synctest.Wait()
		first, err := server.Next(testContext(t))
		require.NoError(t, err)
		got <- first
		last := nextLater(t, server) // does not receive the aborted message either
		synctest.Wait()
		close(stop)
		synctest.Wait()
		select {
		case in := <-last:
			got <- in
		default:
		}
		close(got)
		var all []string
		for in := range got {
			all = append(all, string(in.Descriptor().Metadata))
			read(t, in)
		}
		require.ElementsMatch(t, []string{"metadata 0", "metadata 1", "metadata 3"}, all)
	})
}
