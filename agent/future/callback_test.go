package future_test

import (
	"bytes"
	"io"
	"log"
	"os"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

// TestCallbackOrder checks that callbacks run in the order in which they were added: before
// completion, after it, by other callbacks, and by Then. The first callback blocks until the test
// has added all of its own.
func TestCallbackOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const nested = 3
		adds := rapid.SliceOfN(rapid.IntRange(0, nested), 1, 12).Draw(t, "callbacks that each adds")
		completeAt := rapid.IntRange(0, len(adds)).Draw(t, "complete before")
		viaThen := rapid.Bool().Draw(t, "by Then")

		f := future.New[int]()
		block, finished := make(chan struct{}), make(chan struct{})
		var got []int
		add := func(run func()) {
			if viaThen {
				future.Then(f, func(*future.Future[int]) (int, error) { run(); return 0, nil })
			} else {
				require.NoError(t, f.OnDone(func(*future.Future[int]) { run() }))
			}
		}
		add(func() { <-block })
		for i, n := range adds {
			if i == completeAt {
				require.NoError(t, f.Set(1))
			}
			add(func() {
				got = append(got, i)
				for k := range n {
					add(func() { got = append(got, 100*(i+1)+k) })
				}
				if i == len(adds)-1 {
					add(func() { close(finished) })
				}
			})
		}
		if completeAt == len(adds) {
			require.NoError(t, f.Set(1))
		}
		close(block)
		<-finished
		require.Equal(t, inOrder(adds), got)
	})
}

// inOrder returns the numbers that the callbacks of TestCallbackOrder append: first those of the
// callbacks that the test adds, then those of the callbacks that each of these adds.
func inOrder(adds []int) []int {
	var want []int
	for i := range adds {
		want = append(want, i)
	}
	for i, n := range adds {
		for k := range n {
			want = append(want, 100*(i+1)+k)
		}
	}
	return want
}

// TestCallbackRunsOutsideOfSet checks that a callback runs on another goroutine than Set, so the
// goroutine that calls Set or OnDone may hold a lock that the callback needs.
func TestCallbackRunsOutsideOfSet(t *testing.T) {
	for name, late := range map[string]bool{"added before": false, "added after": true} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			f, ran := future.New[int](), make(chan int)
			add := func() {
				require.NoError(t, f.OnDone(func(f *future.Future[int]) {
					mu.Lock()
					defer mu.Unlock()
					v, _ := f.Result()
					ran <- v
				}))
			}
			mu.Lock()
			if !late {
				add()
			}
			require.NoError(t, f.Set(5))
			if late {
				add()
			}
			mu.Unlock()
			require.Equal(t, 5, <-ran)
		})
	}
}

// TestCallbackMayWait checks that a callback may wait for a future that another goroutine
// completes, and complete a third one.
func TestCallbackMayWait(t *testing.T) {
	f, other, third := future.New[int](), future.New[int](), future.New[int]()
	require.NoError(t, f.OnDone(func(*future.Future[int]) {
		v, err := other.Wait(t.Context())
		if err == nil {
			err = third.Set(v + 1)
		}
		if err != nil {
			_ = third.Fail(err)
		}
	}))
	require.NoError(t, f.Set(0))
	require.False(t, third.IsDone())
	require.NoError(t, other.Set(41))
	requireOutcome(t, third, 42, nil)
}

// TestBlockedCallbackDelaysOnlyCallbacks checks that a callback that blocks delays later callbacks
// of the same future, but not Await, All and Flatten of it.
func TestBlockedCallbackDelaysOnlyCallbacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, block := future.New[int](), make(chan struct{})
		require.NoError(t, f.OnDone(func(*future.Future[int]) { <-block }))
		behind := future.Then(f, func(*future.Future[int]) (int, error) { return 2, nil })
		all := future.All(f)
		outer := future.New[*future.Future[int]]()
		flat := future.Flatten(outer)
		require.NoError(t, outer.Set(f))

		require.NoError(t, f.Set(1))
		requireOutcome(t, flat, 1, nil)
		require.NoError(t, future.Await(t.Context(), f, all, flat))
		late := future.Then(f, func(*future.Future[int]) (int, error) { return 3, nil })
		synctest.Wait()
		require.False(t, behind.IsDone(), "callbacks run one at a time")
		require.False(t, late.IsDone(), "also those added after completion")
		close(block)
		requireOutcome(t, behind, 2, nil)
		requireOutcome(t, late, 3, nil)
	})
}

func TestNilCallback(t *testing.T) {
	for name, f := range map[string]*future.Future[int]{"pending": future.New[int](), "done": future.Of(1)} {
		require.ErrorIs(t, f.OnDone(nil), future.ErrNilCallback, name)
	}
}

// TestPanicInCallback checks that a panic in a callback is passed to OnPanic with its stack; the
// other callbacks run, and derived futures have the same OnPanic.
func TestPanicInCallback(t *testing.T) {
	reports := make(chan *future.PanicError, 3)
	f := future.NewWith[int](future.Options{OnPanic: func(p *future.PanicError) { reports <- p }})
	require.NoError(t, f.OnDone(func(*future.Future[int]) { panic(io.ErrUnexpectedEOF) }))
	require.NoError(t, f.OnDone(func(*future.Future[int]) { panic("text") }))
	next := future.Then(f, func(f *future.Future[int]) (int, error) { return f.Result() })
	require.NoError(t, f.Set(1))
	requireOutcome(t, next, 1, nil)

	p := <-reports
	require.ErrorIs(t, p, io.ErrUnexpectedEOF)
	require.Contains(t, string(p.Stack), "TestPanicInCallback", "the stack shows where the panic occurred")
	p = <-reports
	require.EqualError(t, p, "future: callback panicked: text")
	require.NoError(t, p.Unwrap())

	require.NoError(t, next.OnDone(func(*future.Future[int]) { panic("inherited") }))
	require.Equal(t, "inherited", (<-reports).Value, "a derived future has the same handler")
}

// TestPanicIsLogged checks that a panic in a callback is logged if OnPanic is not set, and if
// OnPanic panics too.
func TestPanicIsLogged(t *testing.T) {
	for name, c := range map[string]struct {
		handler func(*future.PanicError)
		want    []string
	}{
		"no handler":  {nil, []string{"first", "TestPanicIsLogged"}},
		"bad handler": {func(*future.PanicError) { panic("second") }, []string{"first", "second"}},
	} {
		t.Run(name, func(t *testing.T) {
			var text bytes.Buffer
			log.SetOutput(&text) // the output of slog's default logger
			t.Cleanup(func() { log.SetOutput(os.Stderr) })
			f := future.NewWith[int](future.Options{OnPanic: c.handler})
			require.NoError(t, f.OnDone(func(*future.Future[int]) { panic("first") }))
			require.NoError(t, f.Set(1))
			behind := future.Then(f, func(*future.Future[int]) (int, error) { return 2, nil })
			requireOutcome(t, behind, 2, nil)
			for _, want := range c.want {
				require.Contains(t, text.String(), want)
			}
		})
	}
}

// TestGoexitInCallback checks that if a callback ends its goroutine with runtime.Goexit, later
// callbacks still run; the result of Then fails with ErrGoexit.
func TestGoexitInCallback(t *testing.T) {
	f := future.New[int]()
	require.NoError(t, f.OnDone(func(*future.Future[int]) { runtime.Goexit() }))
	exits := future.Then(f, func(*future.Future[int]) (int, error) { runtime.Goexit(); return 1, nil })
	behind := future.Then(f, func(*future.Future[int]) (int, error) { return 2, nil })
	require.NoError(t, f.Set(1))
	requireOutcome(t, exits, 0, future.ErrGoexit)
	requireOutcome(t, behind, 2, nil)
}
