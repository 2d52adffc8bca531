package agent_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/procgroup"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

var keep = agent.NewFunc[fetched, int]("test.keep")

// slots is the name of a header with the numbers of the pages of a pool, one byte for each.
const slots = "test.slots"

// keepIn returns a PlaceFunc that places tensors in the pages of pool that the header slots names,
// or fails without that header.
func keepIn(t testing.TB, pool *tensor.Tensor) agent.PlaceFunc {
	return func(_ context.Context, m *agent.Message, info []agent.TensorInfo) ([]*tensor.Tensor, error) {
		header, ok := m.Header(slots)
		if !ok {
			return nil, fmt.Errorf("%s from %s has no header", m.Name, m.Peer.Name)
		}
		var numbers []int
		for _, n := range header {
			numbers = append(numbers, int(n))
		}
		return pagesOf(t, pool, numbers...), nil
	}
}

// The tensors of an argument are received into the memory that a PlaceFunc of the function chooses
// by a header of the call, from other workers and from this one. If a tensor does not fit, the
// caller gets a FitError, and the memory is untouched.
func TestArgumentLandsInChosenMemory(t *testing.T) {
	for _, n := range []int{64, 256 << 10} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			pool := newPool(t, n, 0)
			received := make(chan []*tensor.Tensor, 1)
			serve := keep.Serve(func(_ context.Context, f fetched) (int, error) {
				received <- f.Pages
				return len(f.Note), nil
			}, agent.WithArgsInto(keepIn(t, pool)))
			overPaths(t, agent.Funcs{serve}, func(t *testing.T, group []*agent.Agent, _ *countingAllocator) {
				require.NoError(t, pool.CopyFrom(newPool(t, n, 0)))
				from := newPool(t, n, 100)
				for i, to := range []agent.To{"worker1", "worker0"} {
					places := []int{12 + i, 0 + i, 7 + i}
					header := agent.WithHeader(slots, []byte{byte(places[0]), byte(places[1]), byte(places[2])})
					got, err := keep.Call(t.Context(), group[0], to, fetched{"note", pagesOf(t, from, 9, 3, 14)}, header)
					require.NoError(t, err)
					require.Equal(t, 4, got)
					for k, page := range <-received {
						require.Same(t, pool.Storage(), page.Storage())
						require.Equal(t, places[k]*n, page.Offset())
					}
				}
				requirePages(t, pool, []int{9, 3, 14, 9, 3, 14}, []int{12, 0, 7, 13, 1, 8})

				_, err := keep.Call(t.Context(), group[0], "worker1", fetched{"note", pagesOf(t, from, 1, 2)}, agent.WithHeader(slots, []byte{2}))
				require.ErrorIs(t, err, agent.ErrArguments)
				var fit *agent.FitError
				require.ErrorAs(t, err, &fit)
				require.Equal(t, agent.FitError{Index: -1, Tensor: "2 tensors", Memory: "1 tensors"}, *fit)
				_, err = keep.Call(t.Context(), group[0], "worker1", fetched{"note", pagesOf(t, from, 1, 2)})
				require.ErrorIs(t, err, agent.ErrArguments)
				require.ErrorContains(t, err, "test.keep from worker0 has no header")
				requirePages(t, pool, []int{9, 3, 14, 9, 3, 14}, []int{12, 0, 7, 13, 1, 8})
			})
		})
	}
}

// The memory that a PlaceFunc chooses is not released with borrowed arguments.
func TestChosenMemoryIsNotBorrowed(t *testing.T) {
	pool := newPool(t, 64, 0)
	serve := keep.Serve(func(context.Context, fetched) (int, error) { return 1, nil }, agent.WithArgsInto(keepIn(t, pool)), agent.WithBorrowedArgs())
	group := startGroup(t, 2, func(_ int, c *agent.Config) { c.Funcs = agent.Funcs{serve} })
	for range 2 {
		_, err := keep.Call(t.Context(), group[0], "worker1", fetched{Pages: pagesOf(t, newPool(t, 64, 100), 1)}, agent.WithHeader(slots, []byte{2}))
		require.NoError(t, err)
	}
	requirePages(t, pool, []int{1}, []int{2})
}

// Options that exclude each other, and headers with reserved names, are errors.
func TestIntoOptions(t *testing.T) {
	fn := func(context.Context, fetched) (int, error) { return 0, nil }
	for name, served := range map[string]agent.Served{
		"nil":  keep.Serve(fn, agent.WithArgsInto(nil)),
		"once": keep.Serve(fn, agent.WithArgsInto(keepIn(t, nil)), agent.WithOnce()),
	} {
		_, err := agent.Join(t.Context(), agent.Config{Name: "worker0", WorldSize: 1, Rendezvous: "tcp://127.0.0.1:0", Funcs: agent.Funcs{served}})
		require.ErrorIs(t, err, agent.ErrConfig, name)
		require.ErrorContains(t, err, "WithArgsInto", name)
	}
	group := startGroup(t, 1, func(_ int, c *agent.Config) { c.Funcs = agent.Funcs{keep.Serve(fn)} })
	for _, name := range []string{"", "agent.key", string(make([]byte, 2000))} {
		_, err := keep.Call(t.Context(), group[0], "worker0", fetched{}, agent.WithHeader(name, nil))
		require.ErrorIs(t, err, agent.ErrConfig)
	}
	var many []agent.CallOption
	for i := range 65 {
		many = append(many, agent.WithHeader(fmt.Sprint(i), nil))
	}
	_, err := keep.Call(t.Context(), group[0], "worker0", fetched{}, many...)
	require.ErrorIs(t, err, agent.ErrArguments)
}

// AfterReply runs its functions once the reply was sent, and at once if it was sent before.
func TestAfterReply(t *testing.T) {
	contexts, left := make(chan context.Context, 1), make(chan error, 3)
	done := func(err error) { left <- err }
	serve := fetch.Serve(func(ctx context.Context, w wanted) (fetched, error) {
		contexts <- ctx
		if err := errors.Join(agent.AfterReply(ctx, done), agent.AfterReply(context.WithoutCancel(ctx), done)); err != nil {
			return fetched{}, err
		}
		select {
		case <-left:
			return fetched{}, errors.New("the reply has not left")
		default:
		}
		if w.PageBytes == 0 {
			return fetched{}, errors.New("no page")
		}
		return fetched{Pages: pagesOf(t, newPool(t, w.PageBytes, 100), w.Pages...)}, nil
	})
	overPaths(t, agent.Funcs{serve}, func(t *testing.T, group []*agent.Agent, _ *countingAllocator) {
		for _, to := range []agent.To{"worker1", "worker0"} {
			for _, n := range []int{0, 64, 256 << 10} {
				_, err := fetch.Call(t.Context(), group[0], to, wanted{PageBytes: n, Pages: []int{1, 2}})
				require.Equal(t, n == 0, err != nil, "%v", err)
				require.NoError(t, <-left)
				require.NoError(t, <-left)
				require.NoError(t, agent.AfterReply(<-contexts, done))
				require.NoError(t, <-left)
			}
		}
	})
}

// AfterReply rejects a context that is not of a handler, a nil function, and a function that is
// served WithOnce.
func TestAfterReplyRejects(t *testing.T) {
	require.ErrorIs(t, agent.AfterReply(t.Context(), func(error) {}), agent.ErrConfig)
	group := startGroup(t, 1, func(_ int, c *agent.Config) {
		c.Funcs = agent.Funcs{double.Serve(func(ctx context.Context, n int) (int, error) {
			return n, errors.Join(agent.AfterReply(ctx, func(error) { panic("it runs") }))
		}, agent.WithOnce()), keep.Serve(func(ctx context.Context, _ fetched) (int, error) { return 0, agent.AfterReply(ctx, nil) })}
	})
	_, err := double.Call(t.Context(), group[0], "worker0", 1)
	require.ErrorIs(t, err, agent.ErrConfig)
	require.ErrorContains(t, err, "WithOnce")
	_, err = keep.Call(t.Context(), group[0], "worker0", fetched{})
	require.ErrorIs(t, err, agent.ErrConfig)
}

// If the caller is killed while its argument is received, the function is not called, and the
// PlaceFunc learns by AfterReply that the request has ended. After that the memory is not written to.
func TestCallerIsKilledWhileArgumentIsReceived(t *testing.T) {
	for name, listen := range map[string]string{"shm": "shm://", "tcp": "uv://127.0.0.1:0"} {
		t.Run(name, func(t *testing.T) {
			group := procgroup.Start(t, 2, func(m *procgroup.Member) error { return keepUntilCallerDies(t, m, listen) })
			group.WaitFor(0, "placed")
			group.Kill(1)
			group.Send(0, "killed")
			require.NoError(t, group.WaitExit(0))
			group.Wait()
		})
	}
}

// keepUntilCallerDies runs one of the workers of TestCallerIsKilledWhileArgumentIsReceived: rank 1
// calls rank 0, and is killed while the PlaceFunc of rank 0 runs. The error states what rank 0 has
// observed otherwise than expected.
func keepUntilCallerDies(t *testing.T, m *procgroup.Member, listen string) error {
	const pageBytes = 1 << 20
	pool, ended := newPool(t, pageBytes, 0), make(chan error, 1)
	a, err := joinMember(m, func(c *agent.Config) {
		c.Listen = []string{listen}
		c.Funcs = agent.Funcs{keep.Serve(func(context.Context, fetched) (int, error) {
			ended <- errors.New("the function was called")
			return 0, nil
		}, agent.WithArgsInto(func(ctx context.Context, _ *agent.Message, _ []agent.TensorInfo) ([]*tensor.Tensor, error) {
			m.Send("placed")
			if err := m.WaitFor("killed"); err != nil {
				return nil, err
			}
			into := pagesOf(t, pool, most...)
			return into, agent.AfterReply(ctx, func(err error) { ended <- err })
		}))}
	})
	if err != nil {
		return err
	}
	if m.Rank == 1 {
		_, err := keep.Call(m.Context(), a, "worker0", fetched{Pages: pagesOf(t, newPool(t, pageBytes, 100), most...)})
		return fmt.Errorf("the call has ended: %w", err)
	}
	select {
	case err = <-ended:
	case <-m.Context().Done():
		return m.Context().Err()
	}
	if !errors.Is(err, agent.ErrUnreachable) {
		return fmt.Errorf("want ErrUnreachable, got %w", err)
	}
	if err := pool.CopyFrom(newPool(t, pageBytes, 0)); err != nil {
		return err
	}
	err = a.Close()
	requirePages(t, pool, nil, nil)
	return err
}
