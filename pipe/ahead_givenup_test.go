package pipe_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// A message that its sender has given up before it was read goes to nobody, not even to
// who is ahead of Next.
func TestAheadOfWhatWasGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := connect(t, nativePath(), func(o *pipe.Options) { o.Limits.ReadAheadBytes = 1 })
		for i := range 2 {
			write(t, client, message(i, []int{10}, nil))
		}
		synctest.Wait() // the first has been read, the second waits for room, what follows is not read
		ctx, cancel := context.WithCancel(testContext(t))
		given := client.WriteAsync(ctx, message(2, nil, []int{4 << 20}))
		synctest.Wait()
		cancel()
		require.ErrorIs(t, given.Wait(testContext(t)), context.Canceled)
		write(t, client, message(3, []int{10}, nil))
		synctest.Wait() // the word that it was given up is there

		got, stop := make(chan *pipe.Incoming, 4), make(chan struct{})
		for range 4 { // of whom one is there at any time
			go func() {
				for {
					select {
					case in := <-server.Ahead():
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
		behind := nextLater(t, server) // which the one that was given up does not come to either
		synctest.Wait()
		close(stop)
		synctest.Wait()
		select {
		case in := <-behind:
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
