package agent_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
)

var double = agent.NewFunc[int, int]("test.double")

func serveDouble(_ int, c *agent.Config) {
	c.Funcs = agent.Funcs{double.Serve(func(_ context.Context, n int) (int, error) { return 2 * n, nil })}
}

// All workers call all others at once, before there is any pipe: no call is lost.
func TestFirstCallsCross(t *testing.T) {
	for range 15 {
		group := startGroup(t, 3, serveDouble)
		errs := make(chan error, 64)
		start := make(chan struct{})
		var wg sync.WaitGroup
		for _, from := range group {
			for _, to := range group {
				for n := range 3 {
					wg.Go(func() {
						<-start
						got, err := double.Call(t.Context(), from, to.Self().To(), n)
						if err == nil && got != 2*n {
							err = agent.ErrResult
						}
						errs <- err
					})
				}
			}
		}
		close(start)
		patience.Finish(t, patience.Start(func() bool { wg.Wait(); return true }))
		close(errs)
		for err := range errs {
			require.NoError(t, err)
		}
		for _, a := range group {
			require.NoError(t, a.Close())
		}
	}
}
