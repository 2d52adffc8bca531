package rref_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/rref"
)

var (
	awaitOther = rref.NewMethod[*counter, int, int]("AwaitOther")
	neverDone  = rref.NewMethod[*counter, agent.None, int]("NeverDone")
)

// TestServeAsync checks that a call of an asynchronous method takes no handler slot while it waits,
// and that the end of the call cancels the future.
func TestServeAsync(t *testing.T) {
	arrived, waits := future.New[int](), future.New[int]()
	configure := func(rank int, c *agent.Config, o *rref.Options) {
		c.MaxHandlers = 1
		o.Methods = append(o.Methods,
			awaitOther.ServeAsync(func(_ *counter, _ context.Context, n int) *agent.Future[int] {
				if n != 0 {
					_ = arrived.Set(n)
				}
				return arrived
			}),
			neverDone.ServeAsync(func(*counter, context.Context, agent.None) *agent.Future[int] { return waits }),
		)
	}
	run(t, 2, configure, func(t *testing.T, g *group) {
		f := rref.Remote(t.Context(), g.agents[0], "worker1", newCounter, 1)
		first := awaitOther.Go(t.Context(), f, 0)
		n, err := awaitOther.Call(t.Context(), f, 7)
		require.NoError(t, err)
		require.Equal(t, 7, n)
		n, err = first.Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, 7, n)

		_, err = neverDone.Call(t.Context(), f, agent.None{}, agent.WithTimeout(20*time.Millisecond))
		require.ErrorIs(t, err, agent.ErrTimeout)
		select {
		case <-waits.Done():
			require.ErrorIs(t, waits.Err(), future.ErrCancelled)
		case <-time.NewTimer(testwait.Limit).C:
			require.Fail(t, "the future is not cancelled")
		}
		require.NoError(t, f.Release(t.Context()))
	})
	_, err := agent.Join(t.Context(), agent.Config{
		Name: "alone", WorldSize: 1, Rendezvous: "mem://",
		Extensions: []agent.Extension{rref.New(rref.Options{Methods: rref.Methods{neverDone.ServeAsync(nil)}})},
	})
	require.ErrorIs(t, err, agent.ErrConfig)
	require.ErrorContains(t, err, `method "NeverDone"`)
}

// TestTypeAsync checks that a type is asked for again after a failure, and that a future of it fails
// as Type does.
func TestTypeAsync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run(t, 2, nil, func(t *testing.T, g *group) {
			f := rref.Remote(t.Context(), g.agents[0], "worker1", slow, 100*time.Millisecond)
			_, err := f.TypeAsync(t.Context(), agent.WithTimeout(time.Millisecond)).Wait(t.Context())
			require.ErrorIs(t, err, agent.ErrTimeout)
			for range 2 {
				typ, err := f.TypeAsync(t.Context()).Wait(t.Context())
				require.NoError(t, err)
				require.Equal(t, "int", typ)
			}
			require.NoError(t, f.Release(t.Context()))
			_, err = f.TypeAsync(t.Context()).Wait(t.Context())
			require.ErrorIs(t, err, rref.ErrReleased)
		})
	})
}

// TestSharedValues checks that values count while another worker refers to them.
func TestSharedValues(t *testing.T) {
	run(t, 2, nil, func(t *testing.T, g *group) {
		own := rref.Own(g.agents[1], 1)
		require.Zero(t, g.refs[1].SharedValues())
		f := rref.Remote(t.Context(), g.agents[0], "worker1", double, 1)
		_, err := f.Created().Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, g.refs[1].SharedValues())
		require.NoError(t, f.Release(t.Context()))
		require.Eventually(t, func() bool { return g.refs[1].SharedValues() == 0 }, testwait.Limit, time.Millisecond)
		require.NoError(t, own.Release(t.Context()))
	})
}
