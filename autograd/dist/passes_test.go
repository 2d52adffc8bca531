package dist_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/rref"
)

// custom is a function of the identity whose backward function a test gives.
type custom struct {
	f       agent.Func[variable, variable]
	entered chan struct{} // gets a value when the backward function is called
	release chan error    // its result
}

// newCustom returns a function whose backward function waits for release, or for the end of the pass.
func newCustom() *custom {
	return &custom{agent.NewFunc[variable, variable]("test.custom"), make(chan struct{}, 10), make(chan error)}
}

func (b *custom) wait(ctx context.Context) error {
	b.entered <- struct{}{}
	select {
	case err := <-b.release:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// identity returns x; its backward function calls f.
func identity(ctx context.Context, x variable, f func(context.Context) error) (variable, error) {
	out, err := autograd.Apply(ctx, "IdentityBackward", []variable{x}, func(context.Context) ([]autograd.Value, error) {
		return []autograd.Value{x.Value()}, nil
	}, func(ctx context.Context, grads []autograd.Value) ([]autograd.Value, error) { return grads, f(ctx) })
	if err != nil {
		return nil, err
	}
	return out[0], nil
}

func (b *custom) configure(_ int, c *agent.Config, _ *dist.Options) {
	c.Funcs = append(c.Funcs, b.f.Serve(func(ctx context.Context, x variable) (variable, error) { return identity(ctx, x, b.wait) }))
}

// TestRunningPass checks what is refused while a pass runs, and what ends it.
func TestRunningPass(t *testing.T) {
	b := newCustom()
	run(t, 3, b.configure, func(t *testing.T, g *group) {
		begin := func(ctx context.Context, c *dist.Context) (root variable, result chan error) {
			z, err := b.f.Call(ctx, g.agents[0], "worker1", parameter(2, 2))
			require.NoError(t, err)
			root, result = sum(t, ctx, z), make(chan error, 1)
			go func() { result <- c.BackwardWith(ctx, dist.PassOptions{RetainGraph: true}, root) }()
			<-b.entered
			return root, result
		}
		g.inContext(func(ctx context.Context, c *dist.Context) {
			root, result := begin(ctx, c)
			require.ErrorIs(t, c.Backward(ctx, root), dist.ErrRunning)
			there, err := c.ID().Context(g.agents[1])
			require.NoError(t, err)
			y, err := autograd.Sum(ctx, parameter(1, 2))
			require.NoError(t, err)
			require.ErrorIs(t, there.Backward(ctx, y), dist.ErrRunning, "of another worker")
			b.release <- nil
			require.NoError(t, <-result)
		})
		g.inContext(func(ctx context.Context, c *dist.Context) { // ends it
			_, result := begin(ctx, c)
			require.NoError(t, c.Close())
			require.ErrorIs(t, <-result, dist.ErrNoContext)
		})
		g.inContext(func(ctx context.Context, c *dist.Context) { // on the other worker
			_, result := begin(ctx, c)
			there, err := c.ID().Context(g.agents[1])
			require.NoError(t, err)
			require.NoError(t, there.Close())
			require.ErrorIs(t, <-result, dist.ErrNoContext)
		})
		g.inContext(func(ctx context.Context, c *dist.Context) {
			ctx, cancel := context.WithCancelCause(ctx)
			_, result := begin(ctx, c)
			cancel(errWhy)
			require.ErrorIs(t, <-result, errWhy)
			g.requireNoPass()
		})
	})
}

// TestCallUnderWay checks that a pass is refused, with the name of the call, while a call is under way.
func TestCallUnderWay(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	slow := agent.NewFunc[variable, variable]("test.slow")
	run(t, 2, func(_ int, c *agent.Config, _ *dist.Options) {
		c.Funcs = append(c.Funcs, slow.Serve(func(_ context.Context, x variable) (variable, error) {
			close(entered)
			<-release
			return x, nil
		}))
	}, func(t *testing.T, g *group) {
		g.inContext(func(ctx context.Context, c *dist.Context) {
			x := parameter(1, 2)
			f := slow.Go(ctx, g.agents[0], "worker1", x)
			<-entered
			err := c.Backward(ctx, sum(t, ctx, x))
			require.ErrorIs(t, err, dist.ErrRunning)
			require.ErrorContains(t, err, "the call of test.slow on worker1 is under way")
			close(release)
			z, err := f.Wait(ctx)
			require.NoError(t, err)
			require.NoError(t, c.Backward(ctx, sum(t, ctx, z)))
			requireGradient(t, 1, c, x)
		})
	})
}

// TestFailedPassEndsEverywhere checks that a pass which fails on one of four workers ends on all, also if it
// was begun by another worker than that of the Context.
func TestFailedPassEndsEverywhere(t *testing.T) {
	run(t, 4, nil, func(t *testing.T, g *group) {
		forward := func(ctx context.Context) variable {
			x, err := broken.Call(ctx, g.agents[0], "worker3", parameter(2, 2))
			require.NoError(t, err)
			z, err := relay.Call(ctx, g.agents[0], "worker1", viaArgs{[]string{"worker2", "worker0", "worker2"}, pair{x, parameter(3, 2)}})
			require.NoError(t, err)
			_, err = relay.Call(ctx, g.agents[0], "worker2", viaArgs{[]string{"worker1"}, pair{x, x}}) // waits for gradients
			require.NoError(t, err)
			return z
		}
		g.inContext(func(ctx context.Context, c *dist.Context) {
			for range 3 {
				err := c.BackwardWith(ctx, dist.PassOptions{RetainGraph: true, UnusedZero: true}, sum(t, ctx, forward(ctx)))
				require.Regexp(t, "Error on Node 3: .*simulate error on backward pass.*worker3", err)
				g.requireNoPass()
			}
		})
		g.inContext(func(ctx context.Context, c *dist.Context) {
			root := rref.Remote(ctx, g.agents[0], "worker1", total, forward(ctx))
			err := dist.BackwardRef(ctx, root, dist.PassOptions{UnusedZero: true})
			require.ErrorContains(t, err, errWhy.Error())
			g.requireNoPass()
			y := parameter(1, 2)
			require.Error(t, c.Backward(ctx, sum(t, ctx, y)), "the calls are not used")
			require.NoError(t, root.Release(ctx))
		})
	})
}

// TestPanicInBackward checks that a panic of a backward function is the error of the pass.
func TestPanicInBackward(t *testing.T) {
	panics := agent.NewFunc[variable, variable]("test.panics")
	identityThatPanics := func(ctx context.Context, x variable) (variable, error) {
		return identity(ctx, x, func(context.Context) error { panic("as the test wants") })
	}
	run(t, 2, func(_ int, c *agent.Config, _ *dist.Options) {
		c.Funcs = append(c.Funcs, panics.Serve(identityThatPanics))
	}, func(t *testing.T, g *group) {
		for _, to := range []agent.To{"worker0", "worker1"} {
			g.inContext(func(ctx context.Context, c *dist.Context) {
				z, err := panics.Call(ctx, g.agents[0], to, parameter(2, 2))
				require.NoError(t, err)
				err = c.Backward(ctx, sum(t, ctx, z))
				require.Regexp(t, "Error on Node "+string(to[len("worker"):])+": .*as the test wants", err)
				g.requireNoPass()
			})
		}
	})
}

// TestBackwardThatCalls runs backward functions that make calls of their own, in the same Context, also with
// a single slot for handlers.
func TestBackwardThatCalls(t *testing.T) {
	calling := agent.NewFunc[variable, variable]("test.calling")
	var results atomic.Int64
	run(t, 3, func(_ int, c *agent.Config, _ *dist.Options) {
		c.MaxHandlers = 1
		c.Funcs = append(c.Funcs, calling.Serve(func(ctx context.Context, x variable) (variable, error) {
			a := agent.FromContext(ctx)
			return identity(ctx, x, func(ctx context.Context) error {
				z, err := relay.Call(ctx, a, "worker2", viaArgs{[]string{"worker0", "worker1"}, pair{parameter(2, 2), x}})
				if err == nil && z.RequiresGrad() {
					err = fmt.Errorf("the result of a call by a backward function requires a gradient")
				}
				results.Add(1)
				return err
			})
		}))
	}, func(t *testing.T, g *group) {
		g.inContext(func(ctx context.Context, c *dist.Context) {
			x := parameter(2, 2)
			z, err := calling.Call(ctx, g.agents[0], "worker1", x)
			require.NoError(t, err)
			z, err = calling.Call(ctx, g.agents[0], "worker2", z)
			require.NoError(t, err)
			before := len(c.Sends())
			require.NoError(t, c.Backward(ctx, sum(t, ctx, z)))
			requireGradient(t, 1, c, x)
			require.EqualValues(t, 2, results.Load())
			require.Len(t, c.Sends(), before)
		})
	})
}

// TestChainOfUnusedCalls checks that a pass names unused calls, or gives them zeros, also if they are nested
// over all workers, and feed each other.
func TestChainOfUnusedCalls(t *testing.T) {
	run(t, 3, nil, func(t *testing.T, g *group) {
		x, y, w := parameter(2, 2), parameter(5, 2), parameter(1, 2)
		forward := func(ctx context.Context) variable {
			z := w
			for i := range 3 { // each uses the result of the one before
				var err error
				z, err = relay.Call(ctx, g.agents[0], agent.To(fmt.Sprint("worker", (i+1)%3)), viaArgs{[]string{"worker2", "worker0", "worker1"}, pair{z, y}})
				require.NoError(t, err)
			}
			used, err := relay.Call(ctx, g.agents[0], "worker1", viaArgs{[]string{"worker2"}, pair{x, y}})
			require.NoError(t, err)
			return sum(t, ctx, used)
		}
		g.inContext(func(ctx context.Context, c *dist.Context) {
			root := forward(ctx)
			begun := time.Now()
			err := c.Backward(ctx, root)
			t.Log("the error came after", time.Since(begun))
			require.ErrorIs(t, err, dist.ErrUnused)
			require.ErrorContains(t, err, "the result of test.relay for worker0, sent by worker0")
			g.requireNoPass()
		})
		g.inContext(func(ctx context.Context, c *dist.Context) {
			o := dist.PassOptions{UnusedZero: true, RetainGraph: true}
			root := forward(ctx)
			for i := range 3 {
				require.NoError(t, c.BackwardWith(ctx, o, root))
				requireGradient(t, float32(5*(i+1)), c, x)
				requireGradient(t, float32(2*(i+1)), c, y)
				requireGradient(t, 0, c, w)
			}
		})
	})
}

// TestPassBeyondCallBytes checks a pass whose gradients exceed the bytes of calls that a worker may have under
// way: the origin waits in its computation for an answer, which may wait for one that the origin owes.
func TestPassBeyondCallBytes(t *testing.T) {
	const elements = 30_000
	limit := func(_ int, c *agent.Config, _ *dist.Options) { c.Limits.CallBytes = 200 << 10 }
	for _, to := range []agent.To{"worker0", "worker1"} {
		t.Run(string(to), func(t *testing.T) {
			run(t, 2, limit, func(t *testing.T, g *group) {
				ctx, c, err := dist.WithContext(t.Context(), g.agents[0])
				require.NoError(t, err)
				x, y := parameter(2, elements), parameter(3, elements)
				var sum variable
				for range 3 {
					z, err := agent.One[variable](g.agents[0].Op(ctx, to, "aten::mul", x, y))
					require.NoError(t, err)
					z, err = autograd.Mul(ctx, z, y)
					require.NoError(t, err)
					z, err = autograd.Sum(ctx, z)
					require.NoError(t, err)
					if sum == nil {
						sum = z
						continue
					}
					sum, err = autograd.Add(ctx, sum, z)
					require.NoError(t, err)
				}
				require.NoError(t, c.Backward(ctx, sum))
				grad, err := c.Gradient(x)
				require.NoError(t, err)
				requireFilled(t, 3*3*3, grad)
				require.NoError(t, c.Close())
			})
		})
	}
}
