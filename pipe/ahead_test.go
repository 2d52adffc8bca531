package pipe_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// inBothDialects runs f over pipes in virtual time.
func inBothDialects(t *testing.T, f func(t *testing.T, client, server *pipe.Pipe)) {
	for _, p := range []path{nativePath(), memPath()} {
		t.Run(p.dialect, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, server := connect(t, p)
				f(t, client, server)
			})
		})
	}
}

// nextLater takes one message from Next.
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

// A message goes to who is ahead, though somebody else has been in Next for longer.
func TestAheadOfNext(t *testing.T) {
	inBothDialects(t, func(t *testing.T, client, server *pipe.Pipe) {
		behind := nextLater(t, server)
		synctest.Wait()
		ahead := make(chan *pipe.Incoming, 1)
		go func() { ahead <- <-server.Ahead() }()
		synctest.Wait()
		write(t, client, message(1, []int{10}, nil))
		in := <-ahead
		same(t, message(1, []int{10}, nil), in.Descriptor(), read(t, in))
		synctest.Wait() // who handed it over gives room back behind that
		require.Empty(t, behind)
		require.Zero(t, server.Stats().BytesReadAhead)

		write(t, client, message(2, []int{20}, nil))
		in = <-behind
		require.NotNil(t, in)
		same(t, message(2, []int{20}, nil), in.Descriptor(), read(t, in))
		require.EqualValues(t, 2, server.Stats().Received.Messages)
	})
}

// Who is ahead gets nothing while messages wait that came before.
func TestAheadKeepsTheOrder(t *testing.T) {
	inBothDialects(t, func(t *testing.T, client, server *pipe.Pipe) {
		write(t, client, message(1, []int{1}, nil))
		synctest.Wait()
		none := make(chan struct{})
		stop := make(chan struct{})
		go func() {
			defer close(none)
			select {
			case <-server.Ahead():
				t.Error("a message overtook others")
			case <-stop:
			}
		}()
		synctest.Wait()
		write(t, client, message(2, []int{2}, nil))
		synctest.Wait()
		close(stop)
		<-none
		expect(t, server, message(1, []int{1}, nil))
		expect(t, server, message(2, []int{2}, nil))
	})
}
