package rref_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

type (
	numberAndRef struct {
		N   int
		Ref *rref.Ref[int]
	}
	number struct{ N int }
)

var (
	noFunction = agent.NewFunc[*rref.Ref[int], int]("test.noFunction")
	sendsRef   = agent.NewFunc[numberAndRef, int]("test.number")
	takesNone  = agent.NewFunc[number, int]("test.number") // the same function, without the reference
	wrongArgs  = agent.NewFunc[*rref.Ref[int], int]("test.double")
	takesRef   = rref.NewMethod[*counter, *rref.Ref[int], int]("TakesRef")
)

// TestUndecodedReference checks that a reference of its owner in a request that the receiver answers
// without decoding the reference is dropped.
func TestUndecodedReference(t *testing.T) {
	for name, send := range map[string]func(g *group, f *rref.Ref[int]) error{
		"no function": func(g *group, f *rref.Ref[int]) error {
			_, err := noFunction.Call(g.t.Context(), g.agents[0], "worker1", f)
			require.ErrorIs(g.t, err, agent.ErrNoFunction)
			return nil
		},
		"wrong arguments": func(g *group, f *rref.Ref[int]) error {
			_, err := wrongArgs.Call(g.t.Context(), g.agents[0], "worker1", f)
			require.ErrorIs(g.t, err, agent.ErrArguments)
			return nil
		},
		"skipped field": func(g *group, f *rref.Ref[int]) error {
			_, err := sendsRef.Call(g.t.Context(), g.agents[0], "worker1", numberAndRef{5, f})
			return err
		},
		"no method": func(g *group, f *rref.Ref[int]) error {
			c := rref.Remote(g.t.Context(), g.agents[0], "worker1", newCounter, 1)
			_, err := takesRef.Call(g.t.Context(), c, f)
			require.ErrorIs(g.t, err, rref.ErrNoMethod)
			return c.Release(g.t.Context())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each waits for the garbage collector
			run(t, 2, func(_ int, c *agent.Config, _ *rref.Options) {
				c.Funcs = append(slices.Clone(c.Funcs), takesNone.Serve(func(_ context.Context, n number) (int, error) { return n.N, nil }))
			}, func(t *testing.T, g *group) {
				f := rref.Own(g.agents[0], 3)
				require.NoError(t, send(g, f))
				require.NoError(t, f.Release(t.Context()))
				g.requireEmpty()
			})
		})
	}
}

// TestSharedOptions checks that calls do not write to the options of their caller, which another call
// may use at the same time.
func TestSharedOptions(t *testing.T) {
	run(t, 2, nil, func(t *testing.T, g *group) {
		opts := append(make([]agent.CallOption, 0, 8), agent.WithTimeout(time.Minute))
		c := rref.Remote(t.Context(), g.agents[0], "worker1", newCounter, 1, opts...)
		_, err := add.Call(t.Context(), c, 1, opts...)
		require.NoError(t, err)
		_, err = add.Go(t.Context(), c, 1, opts...).Wait(t.Context())
		require.NoError(t, err)
		kept := add.Remote(t.Context(), c, 1, opts...)
		_, err = kept.ToHere(t.Context())
		require.NoError(t, err)
		for _, o := range opts[1:cap(opts)] {
			require.Nil(t, o)
		}
		require.NoError(t, kept.Release(t.Context()))
		require.NoError(t, c.Release(t.Context()))
	})
}

var (
	borrow = agent.NewFunc[*tensor.Tensor, *tensor.Tensor]("test.borrow")
	look   = rref.NewMethod[*tensor.Tensor, agent.None, agent.None]("Look")
)

// TestReleaseDuringMethod checks that the value of a method that runs is kept until it has returned,
// although its caller has given up and the last reference is released: the value lies in memory that is
// used again once it is dropped.
func TestReleaseDuringMethod(t *testing.T) {
	started, goOn, values := make(chan struct{}), make(chan struct{}), make(chan [2]float32, 1)
	run(t, 2, func(_ int, c *agent.Config, o *rref.Options) {
		c.Funcs = append(slices.Clone(c.Funcs), borrow.Serve(func(_ context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
			return x, nil
		}, agent.WithBorrowedArgs()))
		o.Methods = append(slices.Clone(o.Methods), look.Serve(func(x *tensor.Tensor, _ context.Context, none agent.None) (agent.None, error) {
			data, err := tensor.Data[float32](x)
			if err != nil {
				return none, err
			}
			first := data[7]
			close(started)
			<-goOn
			values <- [2]float32{first, data[7]}
			return none, nil
		}))
	}, func(t *testing.T, g *group) {
		filled := func(v float32) *tensor.Tensor {
			x, err := tensor.Zeros(tensor.F32, 1<<20)
			require.NoError(t, err)
			require.NoError(t, tensor.Fill(x, v))
			return x
		}
		f := rref.Remote(t.Context(), g.agents[0], "worker1", borrow, filled(1))
		_, err := f.Created().Wait(t.Context())
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-started
			cancel()
		}()
		_, err = look.Call(ctx, f, agent.None{})
		require.ErrorIs(t, err, context.Canceled)
		require.NoError(t, f.Release(t.Context()))
		require.Eventually(t, func() bool { return g.refs[1].Metrics()["forks"] == 0 }, testwait.Limit, time.Millisecond)
		require.EqualValues(t, 1, g.refs[1].Metrics()["owner_rrefs"])
		for range 20 {
			_, err := borrow.Call(t.Context(), g.agents[0], "worker1", filled(2))
			require.NoError(t, err)
		}
		close(goOn)
		require.Equal(t, [2]float32{1, 1}, <-values)
		g.requireEmpty()
	})
}
