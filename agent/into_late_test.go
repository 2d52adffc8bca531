package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/procgroup"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/simnet"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Memory that the caller has chosen is not written to after a call has ended early.

// requireUntouched overwrites the memory of x, runs f, and requires that x has not changed.
func requireUntouched(t *testing.T, x *tensor.Tensor, f func()) {
	t.Helper()
	require.NoError(t, tensor.Fill[uint8](x, 0x5a))
	f()
	data, err := tensor.Data[uint8](x)
	require.NoError(t, err)
	require.Equal(t, len(data), bytes.Count(data, []byte{0x5a}), "bytes that have not changed")
}

// However a call ends while its large result is received, by its limit, its context or the
// cancellation of its future, the memory is not written to after that, and the pipe stays usable.
func TestCallEndsWhileResultIsReceived(t *testing.T) {
	const perSecond, bytesTotal = 256 << 10, 5 << 20
	retry := agent.WithRetry(agent.Retry{Max: 1, Delay: time.Hour})
	for name, call := range map[string]func(ctx context.Context, a *agent.Agent, into agent.CallOption) error{
		"limit": func(ctx context.Context, a *agent.Agent, into agent.CallOption) error {
			_, err := bulky.Call(ctx, a, "worker1", bytesTotal, into, agent.WithTimeout(5*time.Second))
			return err
		},
		"limit of a future": func(ctx context.Context, a *agent.Agent, into agent.CallOption) error {
			_, err := bulky.Go(ctx, a, "worker1", bytesTotal, into, agent.WithTimeout(5*time.Second)).Wait(ctx)
			return err
		},
		"context": func(ctx context.Context, a *agent.Agent, into agent.CallOption) error {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			_, err := bulky.Call(ctx, a, "worker1", bytesTotal, into)
			return err
		},
		"cancelled future": func(ctx context.Context, a *agent.Agent, into agent.CallOption) error {
			return cancelAfter(bulky.Go(ctx, a, "worker1", bytesTotal, into), 5*time.Second)
		},
		"cancelled future with retries": func(ctx context.Context, a *agent.Agent, into agent.CallOption) error {
			return cancelAfter(bulky.Go(ctx, a, "worker1", bytesTotal, into, retry), 5*time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			overSlowLinks(t, 2, serveBulky, func(t *testing.T, group []*agent.Agent, _ *simnet.Network) {
				_, err := bulky.Call(t.Context(), group[0], "worker1", perSecond) // opens the connections for large replies
				require.NoError(t, err)
				x := bytesOf(t, bytesTotal)
				require.NoError(t, tensor.Fill[uint8](x, 1))
				begun := time.Now()
				require.Error(t, call(t.Context(), group[0], agent.WithInto(x)))
				require.Equal(t, 5*time.Second, time.Since(begun))
				data, err := tensor.Data[uint8](x)
				require.NoError(t, err)
				zeros := bytes.Count(data, []byte{0})
				require.True(t, 0 < zeros && zeros < bytesTotal, "the result was being received: %d bytes of %d", zeros, bytesTotal)
				requireUntouched(t, x, func() {
					<-time.NewTimer(time.Minute).C
					synctest.Wait()
				})
				require.Empty(t, group[0].Snapshot().Pending)
				small, err := bulky.Call(t.Context(), group[0], "worker1", 10, agent.WithInto(bytesOf(t, 10)))
				require.NoError(t, err)
				require.Equal(t, 10, small.Len())
			}, simnet.Rate(perSecond))
		})
	}
}

// bytesOf returns a new U8 tensor of n elements.
func bytesOf(t testing.TB, n int) *tensor.Tensor {
	t.Helper()
	x, err := tensor.Zeros(tensor.U8, n)
	require.NoError(t, err)
	return x
}

// cancelAfter cancels f after d and returns the error of f.
func cancelAfter(f *agent.Future[*tensor.Tensor], d time.Duration) error {
	<-time.NewTimer(d).C
	f.Cancel(errors.New("not needed"))
	_, err := f.Wait(context.Background())
	return err
}

// A call that ends in the PlaceFunc, before elements are received, does not write to the memory: for
// results that are inline, which another caller may read, and for large ones.
func TestCallEndsBeforeResultIsReceived(t *testing.T) {
	overPaths(t, agent.Funcs{serveFetch(t)}, func(t *testing.T, group []*agent.Agent, _ *countingAllocator) {
		for _, n := range []int{64, 256 << 10} {
			pool := newPool(t, n, 0)
			into := pagesOf(t, pool, most...)
			w := wanted{PageBytes: n, Pages: most}

			ctx, cancel := context.WithCancel(t.Context())
			_, err := fetch.Call(ctx, group[0], "worker1", w, agent.WithIntoFunc(func(context.Context, *agent.Message, []agent.TensorInfo) ([]*tensor.Tensor, error) {
				cancel()
				return into, nil
			}))
			require.ErrorIs(t, err, context.Canceled)
			requirePages(t, pool, nil, nil)

			placing, proceed := make(chan struct{}), make(chan struct{})
			f := fetch.Go(t.Context(), group[0], "worker1", w, agent.WithIntoFunc(func(context.Context, *agent.Message, []agent.TensorInfo) ([]*tensor.Tensor, error) {
				close(placing)
				<-proceed
				return into, nil
			}))
			<-placing
			f.Cancel(errors.New("not needed")) // does not wait for the PlaceFunc
			close(proceed)
			_, err = fetch.Call(t.Context(), group[0], "worker1", w)
			require.NoError(t, err)
			requirePages(t, pool, nil, nil)
		}
	})
}

// If the called worker is killed while its result is received, the call fails with ErrUnreachable,
// and the memory is not written to after that.
func TestCalledWorkerIsKilledWhileResultIsReceived(t *testing.T) {
	for name, listen := range map[string]string{"shm": "shm://", "tcp": "uv://127.0.0.1:0"} {
		t.Run(name, func(t *testing.T) {
			group := procgroup.Start(t, 3, func(m *procgroup.Member) error { return fetchFromKilled(t, m, listen) })
			for victim := 1; victim <= 2; victim++ {
				group.WaitFor(0, "placed")
				group.Kill(victim)
				group.Send(0, "killed")
			}
			require.NoError(t, group.WaitExit(0))
			group.Wait()
		})
	}
}

// fetchFromKilled runs one of the workers of TestCalledWorkerIsKilledWhileResultIsReceived: rank 0
// calls rank 1 and, with a future, rank 2, which are killed while the PlaceFuncs of the calls run. The error states what rank 0
// has observed otherwise than expected.
func fetchFromKilled(t *testing.T, m *procgroup.Member, listen string) error {
	const pageBytes = 1 << 20
	a, err := joinMember(m, func(c *agent.Config) {
		c.Listen, c.Funcs = []string{listen}, agent.Funcs{serveFetch(t)}
	})
	if err != nil {
		return err
	}
	if m.Rank != 0 {
		<-m.Context().Done()
		return a.Close()
	}
	pool := newPool(t, pageBytes, 0)
	into := agent.WithIntoFunc(func(context.Context, *agent.Message, []agent.TensorInfo) ([]*tensor.Tensor, error) {
		m.Send("placed")
		return pagesOf(t, pool, most...), m.WaitFor("killed")
	})
	w := wanted{PageBytes: pageBytes, Pages: most}
	for rank, call := range []func() error{
		func() error { _, err := fetch.Call(m.Context(), a, "worker1", w, into); return err },
		func() error { _, err := fetch.Go(m.Context(), a, "worker2", w, into).Wait(m.Context()); return err },
	} {
		if err := wantDeath(call(), "call", fmt.Sprint("worker", rank+1)); err != nil {
			return err
		}
		if err := pool.CopyFrom(newPool(t, pageBytes, 0)); err != nil {
			return err
		}
	}
	err = a.Close()
	requirePages(t, pool, nil, nil)
	return err
}
