package pipe_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// blockingContext is a context whose first call of Done blocks: it stops a call just
// before that would wait.
type blockingContext struct {
	context.Context
	once    sync.Once
	reached chan struct{} // closed when Done is called
	pass    chan struct{} // closed to let Done return
}

func newBlockingContext(ctx context.Context) *blockingContext {
	return &blockingContext{Context: ctx, reached: make(chan struct{}), pass: make(chan struct{})}
}

func (c *blockingContext) Done() <-chan struct{} {
	c.once.Do(func() {
		close(c.reached)
		<-c.pass
	})
	return c.Context.Done()
}

// TestCloseBeforeNextWaits checks that Next returns the error of its own end, ErrClosed, if both
// ends of the pipe are closed when it begins to wait.
func TestCloseBeforeNextWaits(t *testing.T) {
	for _, path := range []path{memPath(), nativePath()} {
		t.Run(path.name, func(t *testing.T) {
			for range 20 { // select chooses at random between the two ends
				client, _ := connect(t, path)
				ctx, got := newBlockingContext(testContext(t)), make(chan error, 1)
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
