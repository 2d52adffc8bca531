package dist_test

import (
	"context"
	"os"
	"reflect"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/rref"
)

// TestIterations runs iterations of a program on two workers: a Context, calls, a pass, a step of an
// optimizer. Nothing is left after each thousand of them. TENSORPIPE_ITERATIONS sets their number; from
// 100,000 on the resident memory must not grow by more than 5 % after the first tenth.
func TestIterations(t *testing.T) {
	n := 1000
	if text := os.Getenv("TENSORPIPE_ITERATIONS"); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	run(t, 2, nil, func(t *testing.T, g *group) {
		a := g.agents[0]
		w := rref.Remote(t.Context(), a, "worker1", newParameter, float32(1))
		opt := dist.NewSGD([]*rref.Ref[variable]{w}, 1e-12)
		x := parameter(2, 2)
		var forks []map[string]int64
		before := int64(0)
		for i := range n {
			g.inContext(func(ctx context.Context, c *dist.Context) { iterate(t, ctx, c, a, w, x, opt, i%100 == 0) })
			switch {
			case i == 0:
				forks = g.forks()
			case i%1000 == 999 || i == n-1:
				g.requireEmpty()
				g.requireNoTables()
				require.Eventually(t, func() bool { return reflect.DeepEqual(forks, g.forks()) }, testwait.Limit, time.Millisecond)
			}
			if i == n/10 {
				before = residentBytes(t)
			}
		}
		if after := residentBytes(t); n >= 100_000 {
			t.Logf("%d bytes after %d iterations, %d after %d", before, n/10, after, n)
			require.LessOrEqual(t, after, before+before/20)
		}
		require.NoError(t, opt.Release(t.Context()))
		require.NoError(t, w.Release(t.Context()))
	})
}

// forks returns the references of all workers, once they are settled.
func (g *group) forks() (all []map[string]int64) {
	g.t.Helper()
	require.Eventually(g.t, func() bool {
		all = nil
		pending := int64(0)
		for _, r := range g.refs {
			m := r.Metrics()
			pending += m["pending_users"] + m["pending_children"]
			all = append(all, m)
		}
		return pending == 0 && all[0]["user_rrefs"] == all[1]["forks"]
	}, testwait.Limit, time.Millisecond)
	return all
}

// iterate is one iteration. The parameter w is on another worker. If creates is set, it makes a reference.
func iterate(t *testing.T, ctx context.Context, c *dist.Context, a *agent.Agent, w *rref.Ref[variable], x variable, opt *dist.Optimizer, creates bool) {
	var y variable
	var err error
	if creates {
		product := mulMethod.Remote(ctx, w, x)
		y, err = product.ToHere(ctx)
		require.NoError(t, product.Release(ctx))
	} else {
		y, err = mulMethod.Call(ctx, w, x)
	}
	require.NoError(t, err)
	z, err := mul.Call(ctx, a, "worker1", pair{y, x})
	require.NoError(t, err)
	require.NoError(t, c.Backward(ctx, sum(t, ctx, z)))
	requireGradient(t, 4, c, x) // of w*x*x
	require.NoError(t, opt.Step(ctx))
}

// residentBytes returns the resident memory of the process, 0 where it cannot be read.
func residentBytes(t *testing.T) int64 {
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	require.NoError(t, err)
	return pages * int64(os.Getpagesize())
}
