package pipe_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// threshold is a context at which a call stops when it is about to wait.
type threshold struct {
	context.Context
	once    sync.Once
	reached chan struct{} // closed when it stops
	pass    chan struct{} // closed when it may go on
}

func newThreshold(ctx context.Context) *threshold {
	return &threshold{Context: ctx, reached: make(chan struct{}), pass: make(chan struct{})}
}

func (c *threshold) Done() <-chan struct{} {
	c.once.Do(func() {
		close(c.reached)
		<-c.pass
	})
	return c.Context.Done()
}

// A call that finds its own end closed and the peer's, too, says what its own end did.
func TestCloseBeforeNextWaits(t *testing.T) {
	for _, path := range []path{memPath(), nativePath()} {
		t.Run(path.name, func(t *testing.T) {
			for range 20 { // where both have ended, chance says what is looked at
				client, _ := connect(t, path)
				ctx, got := newThreshold(testContext(t)), make(chan error, 1)
				go func() {
					_, err := client.Next(ctx)
					got <- err
				}()
				<-ctx.reached
				require.NoError(t, client.Close())
				close(ctx.pass)
				require.ErrorIs(t, <-got, pipe.ErrClosed)
			}
		})
	}
}
