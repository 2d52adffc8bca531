package agent_test

import (
	"context"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

var whereabouts = agent.NewFunc[*tensor.Tensor, string]("test.whereabouts")

// A handler runs on the goroutine that has read its request, a large one as well; and while
// it waits for something another goroutine takes in what comes.
func TestHandlersRunWhereTheirRequestsCome(t *testing.T) {
	for name, elements := range map[string]int{"small": 1, "large": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			wait, stacks := make(chan struct{}), make(chan string, 1)
			group := startGroup(t, 2, func(_ int, c *agent.Config) {
				c.Funcs = agent.Funcs{
					whereabouts.Serve(func(context.Context, *tensor.Tensor) (string, error) {
						stacks <- string(debug.Stack())
						<-wait
						return "here", nil
					}),
					descend.Serve(goDown),
				}
			})
			x, err := tensor.FromSlice(make([]float32, elements), elements)
			require.NoError(t, err)
			blocked := whereabouts.Go(t.Context(), group[0], "worker1", x)
			require.Contains(t, <-stacks, "(*conn).readOn")

			_, err = descend.Call(t.Context(), group[0], "worker1", depth{})
			require.NoError(t, err)
			close(wait)
			where, err := blocked.Wait(t.Context())
			require.NoError(t, err)
			require.Equal(t, "here", where)
		})
	}
}
