package agent_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
)

// A handler learns why nobody waits for it any more.
func TestCauseOfHandlersContext(t *testing.T) {
	park := agent.NewFunc[agent.None, agent.None]("test.park")
	begun, ended := make(chan struct{}, 1), make(chan error, 1)
	group := startGroup(t, 2, func(_ int, c *agent.Config) {
		c.Funcs = agent.Funcs{park.Serve(func(ctx context.Context, _ agent.None) (agent.None, error) {
			begun <- struct{}{}
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return agent.None{}, ctx.Err()
		})}
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	call := park.Go(ctx, group[0], "worker1", agent.None{})
	patience.Finish(t, begun)
	cancel(errors.New("tired"))
	err := patience.Finish(t, ended)
	require.ErrorIs(t, err, agent.ErrCallerGone)
	require.ErrorContains(t, err, "tired")
	_, err = call.Wait(t.Context())
	require.ErrorContains(t, err, "tired")
}
