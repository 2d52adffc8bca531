package dist_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
)

// TestCallThatEndsInPass lets a call fail on another worker while a pass runs there, of which its arguments are
// part: their node still takes the gradients, which are none.
func TestCallThatEndsInPass(t *testing.T) {
	late := agent.NewFunc[pair, variable]("test.late")
	synctest.Test(t, func(t *testing.T) {
		h := &faultHook{}
		configure := func(rank int, c *agent.Config, o *dist.Options) {
			h.configure(rank, c, o)
			c.Funcs = append(c.Funcs, late.Serve(func(ctx context.Context, p pair) (variable, error) {
				return mul.Call(context.WithoutCancel(ctx), agent.FromContext(ctx), "worker2", p, agent.WithTimeout(10*time.Second))
			}))
		}
		run(t, 3, configure, func(t *testing.T, g *group) {
			g.inContext(func(ctx context.Context, c *dist.Context) {
				x, y := parameter(2, 2), parameter(5, 2)
				h.set(faultOf(1, agent.KindReply, "test.mul", agent.Fault{Drop: true}))
				_, err := late.Call(ctx, g.agents[0], "worker1", pair{x, y}, agent.WithTimeout(time.Second))
				require.ErrorIs(t, err, agent.ErrTimeout)
				z, err := mul.Call(ctx, g.agents[0], "worker1", pair{x, y})
				require.NoError(t, err)
				h.set(faultOf(1, agent.KindReply, dist.FindMessage.Type(), agent.Fault{Delay: 20 * time.Second}))
				begun := time.Now()
				require.NoError(t, c.Backward(ctx, sum(t, ctx, z)))
				require.Equal(t, 20*time.Second, time.Since(begun), "the call has ended in between")
				requireGradient(t, 5, c, x)
				requireGradient(t, 2, c, y)
			})
		})
	})
}

// TestRepeatedQuestions sends the messages by which a pass looks for unused calls before the pass does, as if
// they came twice: the pass gets the second reply, which is as good as the first, or an error.
func TestRepeatedQuestions(t *testing.T) {
	for name, test := range map[string]struct {
		ask  func(ctx context.Context, g *group, id dist.PassID) error
		want error
	}{
		"find": {func(ctx context.Context, g *group, id dist.PassID) error {
			_, err := dist.FindMessage.Call(ctx, g.agents[1], "worker2", "", dist.FindRequest{Pass: id, Messages: []uint64{1}})
			return err
		}, nil},
		"settle": {func(ctx context.Context, g *group, id dist.PassID) error {
			_, err := dist.SettleMessage.Call(ctx, g.agents[0], "worker1", "", dist.SettleRequest{Pass: id, Round: 1})
			if errors.Is(err, dist.ErrFailed) { // the pass does not run yet on worker0, which worker1 asks
				return nil
			}
			return err
		}, dist.ErrRepeated},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, 3, nil, func(t *testing.T, g *group) {
				g.inContext(func(ctx context.Context, c *dist.Context) {
					x, y := parameter(2, 2), parameter(5, 2)
					_, err := relay.Call(ctx, g.agents[0], "worker1", viaArgs{[]string{"worker2", "worker1"}, pair{x, y}}) // unused
					require.NoError(t, err)
					z, err := mul.Call(ctx, g.agents[0], "worker1", pair{x, y})
					require.NoError(t, err)
					id := dist.PassIDOf(c, g.agents[0].Incarnation(), 1) // that of the pass below
					id.Zero = true
					require.NoError(t, test.ask(t.Context(), g, id))
					err = c.BackwardWith(ctx, dist.PassOptions{UnusedZero: true}, sum(t, ctx, z))
					require.ErrorIs(t, err, test.want)
					if test.want == nil {
						requireGradient(t, 5, c, x)
						requireGradient(t, 2, c, y)
					}
				})
			})
		})
	}
}
