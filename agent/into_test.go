package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// fetched is a result with several tensors, and values of any size.
type fetched struct {
	Note  string
	Pages []*tensor.Tensor
}

// wanted is the argument of fetch: pages of the pool of the called worker, each of pageBytes.
type wanted struct {
	PageBytes int
	Pages     []int
	Note      int // bytes of Note in the result
	Transpose bool
}

var fetch = agent.NewFunc[wanted, fetched]("test.fetch")

const poolPages = 16

// most is pages of a pool whose bytes, for pages of 256 KiB, exceed the limits of inline parts.
var most = []int{0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13}

// newPool returns a pool of poolPages pages, as one U8 tensor. Page i is filled with first+i.
func newPool(t testing.TB, pageBytes int, first byte) *tensor.Tensor {
	t.Helper()
	pool, err := tensor.Zeros(tensor.U8, poolPages, pageBytes)
	require.NoError(t, err)
	data, err := tensor.MutableData[uint8](pool)
	require.NoError(t, err)
	for i := range poolPages {
		copy(data[i*pageBytes:], bytes.Repeat([]byte{first + byte(i)}, pageBytes))
	}
	return pool
}

// pagesOf returns the pages of pool with the given numbers: views, in that order.
func pagesOf(t testing.TB, pool *tensor.Tensor, numbers ...int) []*tensor.Tensor {
	t.Helper()
	var pages []*tensor.Tensor
	for _, n := range numbers {
		page, err := pool.Select(0, n)
		require.NoError(t, err)
		pages = append(pages, page)
	}
	return pages
}

// serveFetch returns an entry for Config.Funcs that serves fetch with pages of pools that newPool
// has filled from 100 on.
func serveFetch(t testing.TB) agent.Served {
	return fetch.Serve(func(_ context.Context, w wanted) (fetched, error) {
		pool := newPool(t, w.PageBytes, 100)
		if w.Transpose {
			square, err := tensor.FromStorage(pool.Storage(), tensor.U8, w.PageBytes, poolPages)
			if err != nil {
				return fetched{}, err
			}
			if square, err = square.Transpose(0, 1); err != nil {
				return fetched{}, err
			}
			return fetched{Pages: pagesOf(t, square, w.Pages...)}, nil
		}
		return fetched{strings.Repeat("x", w.Note), pagesOf(t, pool, w.Pages...)}, nil
	})
}

// countingAllocator counts the bytes that it allocates.
type countingAllocator struct {
	tensor.Heap
	bytes atomic.Int64
}

func (a *countingAllocator) Alloc(n int) (*tensor.Storage, error) {
	a.bytes.Add(int64(n))
	return a.Heap.Alloc(n)
}

// overPaths runs f in subtests with two workers that are connected in memory, through shared memory
// and over TCP. worker0 allocates from memory, and both serve funcs.
func overPaths(t *testing.T, funcs agent.Funcs, f func(t *testing.T, group []*agent.Agent, memory *countingAllocator)) {
	network := mem.NewNetwork()
	for name, configure := range map[string]func(c *agent.Config){
		"mem": func(c *agent.Config) { inMemory(c, network) },
		"shm": func(c *agent.Config) { c.Listen = []string{"shm://"} },
		"tcp": func(c *agent.Config) { c.Listen = []string{"uv://127.0.0.1:0"} },
	} {
		t.Run(name, func(t *testing.T) {
			if name == "shm" && runtime.GOOS != "linux" {
				t.Skip("shared memory needs Linux")
			}
			memory := &countingAllocator{}
			f(t, startGroup(t, 2, func(rank int, c *agent.Config) {
				configure(c)
				c.Funcs = funcs
				if rank == 0 {
					c.Allocator = memory
				}
			}), memory)
		})
	}
}

// requirePages requires that pool has the pages of the pool that serveFetch uses at the places to,
// and its own, of a pool that newPool has filled from 0 on, at all others.
func requirePages(t *testing.T, pool *tensor.Tensor, from, to []int) {
	t.Helper()
	data, err := tensor.Data[uint8](pool)
	require.NoError(t, err)
	n := len(data) / poolPages
	for i := range poolPages {
		want := byte(i)
		for k := range to {
			if to[k] == i {
				want = 100 + byte(from[k])
			}
		}
		require.Equal(t, n, bytes.Count(data[i*n:(i+1)*n], []byte{want}), "page %d is not all %d: %v", i, want, data[i*n:i*n+4])
	}
}

// The tensors of a result are received into the memory that the caller has chosen, which they have
// in the result; other memory is untouched, and none is allocated for pages that do not share
// memory in the message. It is so for calls, futures, retries and calls to the same worker.
func TestResultLandsInChosenMemory(t *testing.T) {
	calls := map[string]func(a *agent.Agent, to agent.To, w wanted, opts ...agent.CallOption) (fetched, error){
		"call": func(a *agent.Agent, to agent.To, w wanted, opts ...agent.CallOption) (fetched, error) {
			return fetch.Call(t.Context(), a, to, w, opts...)
		},
		"future": func(a *agent.Agent, to agent.To, w wanted, opts ...agent.CallOption) (fetched, error) {
			return fetch.Go(t.Context(), a, to, w, opts...).Wait(t.Context())
		},
		"retry": func(a *agent.Agent, to agent.To, w wanted, opts ...agent.CallOption) (fetched, error) {
			return fetch.Go(t.Context(), a, to, w, append(opts, agent.WithRetry(agent.Retry{}))...).Wait(t.Context())
		},
	}
	overPaths(t, agent.Funcs{serveFetch(t)}, func(t *testing.T, group []*agent.Agent, memory *countingAllocator) {
		for name, call := range calls {
			for _, to := range []agent.To{"worker1", "worker0"} {
				for _, w := range []wanted{
					{PageBytes: 64, Pages: []int{9, 3, 14}},
					{PageBytes: 80 << 10, Pages: []int{9, 3, 14}},
					{PageBytes: 1 << 20, Pages: []int{9, 3, 14}},                 // not inline through shared memory
					{PageBytes: 80 << 10, Pages: []int{4, 5, 6}, Note: 100},      // one part of the message
					{PageBytes: 64 << 10, Pages: []int{0, 15, 7}, Note: 100_000}, // the values are a payload
					{PageBytes: 4096, Pages: []int{1, 2, 3}, Transpose: true},
					{PageBytes: 4096, Pages: []int{1, 1, 3}}, // overlapping parts of the pool there
				} {
					t.Run(fmt.Sprintf("%s %s %d %v %d", name, to, w.PageBytes, w.Pages, w.Note), func(t *testing.T) {
						pool, places := newPool(t, w.PageBytes, 0), []int{12, 0, 7}
						if w.Transpose {
							pool = newPool(t, 4096, 0)
						}
						into := pagesOf(t, pool, places...)
						memory.bytes.Store(0)
						got, err := call(group[0], to, w, agent.WithInto(into...))
						require.NoError(t, err)
						require.Len(t, got.Note, w.Note)
						for i := range into {
							require.Same(t, into[i], got.Pages[i])
						}
						if w.Transpose {
							requireTransposed(t, into, w.Pages)
							return
						}
						requirePages(t, pool, w.Pages, places)
						if to != "worker0" && w.Note < 100_000 && w.Pages[0] != w.Pages[1] {
							require.Zero(t, memory.bytes.Load(), "bytes that were allocated for tensors")
						}
					})
				}
			}
		}
	})
}

// requireTransposed requires that page k of into has column pages[k] of the matrix of 4096 rows whose
// memory serveFetch has filled.
func requireTransposed(t *testing.T, into []*tensor.Tensor, pages []int) {
	t.Helper()
	for k := range into {
		data, err := tensor.Data[uint8](into[k])
		require.NoError(t, err)
		for i := range data {
			require.Equal(t, 100+byte((i*poolPages+pages[k])/4096), data[i])
		}
	}
}

// A tensor that is nil is allocated as without WithInto, also if it shares a part of the message
// with one that is placed.
func TestResultLandsInPart(t *testing.T) {
	overPaths(t, agent.Funcs{serveFetch(t)}, func(t *testing.T, group []*agent.Agent, _ *countingAllocator) {
		for _, pages := range [][]int{{9, 3, 14}, {4, 5, 6}} {
			pool := newPool(t, 64<<10, 0)
			into := pagesOf(t, pool, 1, 2)
			got, err := fetch.Call(t.Context(), group[0], "worker1", wanted{PageBytes: 64 << 10, Pages: pages}, agent.WithInto(into[0], nil, into[1]))
			require.NoError(t, err)
			requirePages(t, pool, []int{pages[0], pages[2]}, []int{1, 2})
			other, err := tensor.Data[uint8](got.Pages[1])
			require.NoError(t, err)
			require.Equal(t, 64<<10, bytes.Count(other, []byte{100 + byte(pages[1])}))
		}
	})
}

// A result that does not fit the memory fails the call with a FitError that describes both; the
// memory is untouched, and the pipe usable.
func TestResultThatDoesNotFit(t *testing.T) {
	overPaths(t, agent.Funcs{serveFetch(t)}, func(t *testing.T, group []*agent.Agent, _ *countingAllocator) {
		for _, n := range []int{64, 80 << 10} {
			pool := newPool(t, n, 0)
			three := pagesOf(t, pool, 2, 4, 6)
			readOnly := newPool(t, n, 0)
			readOnly.Storage().SetReadOnly(true)
			square, err := tensor.FromStorage(pool.Storage(), tensor.U8, n, poolPages)
			require.NoError(t, err)
			column, err := square.Select(1, 1)
			require.NoError(t, err)
			floats, err := tensor.Zeros(tensor.F32, n)
			require.NoError(t, err)
			shorter, err := tensor.Zeros(tensor.U8, n-1)
			require.NoError(t, err)
			for _, c := range []struct {
				into []*tensor.Tensor
				want agent.FitError
			}{
				{three[:2], agent.FitError{Index: -1, Tensor: "3 tensors", Memory: "2 tensors"}},
				{nil, agent.FitError{Index: -1, Tensor: "3 tensors", Memory: "0 tensors"}},
				{[]*tensor.Tensor{three[0], three[1], shorter}, agent.FitError{Index: 2, Tensor: fmt.Sprintf("u8 [%d]", n), Memory: fmt.Sprintf("u8 [%d]", n-1)}},
				{[]*tensor.Tensor{three[0], floats, three[2]}, agent.FitError{Index: 1, Tensor: fmt.Sprintf("u8 [%d]", n), Memory: fmt.Sprintf("f32 [%d]", n)}},
				{append(three[:2:2], pagesOf(t, readOnly, 1)...), agent.FitError{Index: 2, Tensor: fmt.Sprintf("u8 [%d]", n), Memory: "read-only"}},
				{[]*tensor.Tensor{column, three[1], three[2]}, agent.FitError{Index: 0, Tensor: fmt.Sprintf("u8 [%d]", n), Memory: "not contiguous"}},
			} {
				for _, note := range []int{0, 100_000} {
					w := wanted{PageBytes: n, Pages: []int{9, 3, 14}, Note: note}
					_, callErr := fetch.Call(t.Context(), group[0], "worker1", w, agent.WithInto(c.into...))
					_, goErr := fetch.Go(t.Context(), group[0], "worker1", w, agent.WithInto(c.into...)).Wait(t.Context())
					for _, err := range []error{callErr, goErr} {
						require.ErrorIs(t, err, agent.ErrResult)
						var fit *agent.FitError
						require.ErrorAs(t, err, &fit)
						require.Equal(t, c.want, *fit)
					}
					requirePages(t, pool, nil, nil)
				}
			}
			_, err = fetch.Call(t.Context(), group[0], "worker1", wanted{PageBytes: n, Pages: []int{1}}, agent.WithInto(three[0]))
			require.NoError(t, err)
			requirePages(t, pool, []int{1}, []int{2})
		}
	})
}

// An error of the function is the error of the call, whatever memory was chosen for its result.
func TestErrorInPlaceOfResult(t *testing.T) {
	group := startGroup(t, 2, func(_ int, c *agent.Config) {
		c.Funcs = agent.Funcs{fetch.Serve(func(context.Context, wanted) (fetched, error) { return fetched{}, fmt.Errorf("no such page") })}
	})
	_, err := fetch.Call(t.Context(), group[0], "worker1", wanted{}, agent.WithInto(newPool(t, 1, 0)))
	require.ErrorContains(t, err, "no such page")
	require.NotErrorIs(t, err, agent.ErrResult)
}

// A PlaceFunc gets the kind, the name, the sender and the tensors of the message, and its error or
// panic fails the call.
func TestPlaceFuncOfResult(t *testing.T) {
	overPaths(t, agent.Funcs{serveFetch(t)}, func(t *testing.T, group []*agent.Agent, _ *countingAllocator) {
		pool := newPool(t, 64, 0)
		type key struct{}
		ctx := context.WithValue(t.Context(), key{}, "of the caller")
		var place agent.PlaceFunc = func(ctx context.Context, m *agent.Message, info []agent.TensorInfo) ([]*tensor.Tensor, error) {
			got := fmt.Sprintf("%v %s %s %v %v", m.Kind == agent.KindReply, m.Name, m.Peer.Name, info, ctx.Value(key{}))
			if got != "true test.fetch worker1 [{u8 [64] cpu:0}] of the caller" {
				return nil, fmt.Errorf("it got %s", got)
			}
			page, err := pool.Select(0, 5)
			return []*tensor.Tensor{page}, err
		}
		_, err := fetch.Call(ctx, group[0], "worker1", wanted{PageBytes: 64, Pages: []int{3}}, agent.WithIntoFunc(place))
		require.NoError(t, err)
		requirePages(t, pool, []int{3}, []int{5})

		failed := errors.New("no memory for it")
		for _, c := range []struct {
			place agent.PlaceFunc
			want  error
		}{
			{func(context.Context, *agent.Message, []agent.TensorInfo) ([]*tensor.Tensor, error) {
				return nil, failed
			}, failed},
			{func(context.Context, *agent.Message, []agent.TensorInfo) ([]*tensor.Tensor, error) { panic("place") }, agent.ErrPanic},
			{nil, agent.ErrConfig},
		} {
			_, err = fetch.Call(ctx, group[0], "worker1", wanted{PageBytes: 64, Pages: []int{3}}, agent.WithIntoFunc(c.place))
			require.ErrorIs(t, err, c.want)
			_, err = fetch.Go(ctx, group[0], "worker1", wanted{PageBytes: 64, Pages: []int{3}}, agent.WithIntoFunc(c.place)).Wait(ctx)
			require.ErrorIs(t, err, c.want)
		}
	})
}
