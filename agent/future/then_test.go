package future_test

import (
	"errors"
	"io"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

func plusOne(f *future.Future[int]) (int, error) {
	v, err := f.Result()
	return v + 1, err
}

func TestThen(t *testing.T) {
	text := func(f *future.Future[int]) (string, error) {
		v, err := f.Result()
		return strconv.Itoa(v), err
	}
	other := errors.New("another error")
	for _, c := range []struct {
		name string
		fn   func(*future.Future[int]) (string, error)
		err  error // of the first future
		want string
		fail error // of the second
	}{
		{"value", text, nil, "7", nil},
		{"error handed on", text, errLost, "", errLost},
		{"error mended", func(*future.Future[int]) (string, error) { return "mended", nil }, errLost, "mended", nil},
		{"another error", func(f *future.Future[int]) (string, error) { return "x", other }, errLost, "", other},
		{"panic", func(*future.Future[int]) (string, error) { panic(io.ErrNoProgress) }, nil, "", io.ErrNoProgress},
		{"nil", nil, nil, "", future.ErrNilCallback},
	} {
		for _, late := range []bool{false, true} {
			t.Run(c.name+map[bool]string{true: " of a done future"}[late], func(t *testing.T) {
				f := future.New[int]()
				complete := func() {
					if c.err != nil {
						require.NoError(t, f.Fail(c.err))
					} else {
						require.NoError(t, f.Set(7))
					}
				}
				if late {
					complete()
				}
				next := future.Then(f, c.fn)
				if !late {
					require.Equal(t, c.fn == nil, next.IsDone())
					complete()
				}
				requireOutcome(t, next, c.want, c.fail)
				require.Equal(t, c.err, f.Err(), "the first future does not change")
			})
		}
	}
}

func TestPanicInThen(t *testing.T) {
	next := future.Then(future.Of(1), func(*future.Future[int]) (int, error) { panic("oops") })
	_, err := next.Wait(t.Context())
	var p *future.PanicError
	require.ErrorAs(t, err, &p)
	require.Equal(t, "oops", p.Value)
	require.Contains(t, string(p.Stack), "TestPanicInThen")
}

func TestNilFuture(t *testing.T) {
	requireOutcome(t, future.Then(nil, plusOne), 0, future.ErrNilFuture)
	requireOutcome(t, future.Flatten[int](nil), 0, future.ErrNilFuture)
	requireOutcome(t, future.All(future.Of(1), nil), nil, future.ErrNilFuture)
	_, err := future.WaitAll(t.Context(), future.New[int](), nil)
	require.ErrorIs(t, err, future.ErrNilFuture)
	for _, missing := range []future.Any{nil, (*future.Future[int])(nil)} {
		require.ErrorIs(t, future.Await(t.Context(), future.New[string](), missing), future.ErrNilFuture)
		require.ErrorIs(t, future.Settle(t.Context(), future.New[string](), missing), future.ErrNilFuture)
	}
}

// TestManyThen checks that several calls of Then on one future have results of their own and do not
// change the value of the future.
func TestManyThen(t *testing.T) {
	f := future.New[int]()
	var results []*future.Future[int]
	for i := range 10 {
		results = append(results, future.Then(f, func(f *future.Future[int]) (int, error) {
			v, err := f.Wait(t.Context())
			return v + i, err
		}))
	}
	require.NoError(t, f.Set(2))
	for i, r := range results {
		requireOutcome(t, r, 2+i, nil)
	}
	requireOutcome(t, f, 2, nil)
}

func TestChain(t *testing.T) {
	first := future.New[int]()
	f := first
	for range 20 {
		f = future.Then(f, plusOne)
	}
	require.NoError(t, first.Set(1))
	requireOutcome(t, f, 21, nil)
}

// TestNestedThen checks that a function given to Then may call Then on another future and wait for
// its result.
func TestNestedThen(t *testing.T) {
	async := func(v int) *future.Future[int] {
		f := future.New[int]()
		go func() { _ = f.Set(v) }()
		return f
	}
	f := future.Then(async(1), func(f *future.Future[int]) (int, error) {
		v, err := f.Result()
		if err != nil {
			return 0, err
		}
		return future.Then(async(v+1), plusOne).Wait(t.Context())
	})
	requireOutcome(t, f, 3, nil)
}

func TestThenFuture(t *testing.T) {
	for _, c := range []struct {
		name string
		fn   func(*future.Future[int]) (*future.Future[string], error)
		want string
		fail error
	}{
		{"value", func(f *future.Future[int]) (*future.Future[string], error) {
			g := future.New[string]()
			go func() { _ = g.Set("later") }()
			return g, f.Err()
		}, "later", nil},
		{"done", func(*future.Future[int]) (*future.Future[string], error) { return future.Of("now"), nil }, "now", nil},
		{"failed future", func(*future.Future[int]) (*future.Future[string], error) {
			return future.Failed[string](errLost), nil
		}, "", errLost},
		{"error", func(*future.Future[int]) (*future.Future[string], error) { return nil, errLost }, "", errLost},
		{"panic", func(*future.Future[int]) (*future.Future[string], error) { panic(io.EOF) }, "", io.EOF},
		{"no future", func(*future.Future[int]) (*future.Future[string], error) { return nil, nil }, "", future.ErrNilFuture},
		{"nil", nil, "", future.ErrNilCallback},
	} {
		t.Run(c.name, func(t *testing.T) {
			requireOutcome(t, future.ThenFuture(future.Of(1), c.fn), c.want, c.fail)
		})
	}
}

// TestFlatten checks that the result of Flatten is done when the inner future is done, not before,
// and has its value. It fails if the outer future fails.
func TestFlatten(t *testing.T) {
	outer, inner := future.New[*future.Future[int]](), future.New[int]()
	flat := future.Flatten(outer)
	require.NoError(t, outer.Set(inner))
	require.False(t, flat.IsDone())
	require.NoError(t, inner.Set(3))
	requireOutcome(t, flat, 3, nil)

	requireOutcome(t, future.Flatten(future.Failed[*future.Future[int]](errLost)), 0, errLost)
}

func TestFlattenOfItself(t *testing.T) {
	outer := future.New[*future.Future[int]]()
	flat := future.Flatten(outer)
	require.NoError(t, outer.Set(flat))
	requireOutcome(t, flat, 0, future.ErrCycle)
}

// TestCancelledResult checks that results of Then, All and Flatten that were cancelled stay
// cancelled when the first future completes later, and that future keeps its value.
func TestCancelledResult(t *testing.T) {
	f, ran := future.New[int](), make(chan struct{})
	next := future.Then(f, func(*future.Future[int]) (int, error) { close(ran); return 1, nil })
	all := future.All(f)
	outer := future.New[*future.Future[int]]()
	flat, early := future.Flatten(outer), future.Flatten(outer)
	require.True(t, early.Cancel(io.EOF))
	require.NoError(t, outer.Set(f))
	for _, g := range []future.Any{next, all, flat} {
		require.True(t, g.Cancel(io.EOF))
	}
	require.NoError(t, f.Set(1))
	<-ran
	for _, g := range []future.Any{next, all, flat, early} {
		require.ErrorIs(t, future.Await(t.Context(), g), io.EOF)
	}
	requireOutcome(t, f, 1, nil)
}
