package agent_test

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/loglines"
)

// losableStore is a store that a test can lose.
type losableStore struct {
	store.Store
	lost atomic.Pointer[func(ctx context.Context) error]
}

func (f *losableStore) Get(ctx context.Context, key string) ([]byte, error) {
	if lost := f.lost.Load(); lost != nil {
		return nil, (*lost)(ctx)
	}
	return f.Store.Get(ctx, key)
}

// forEachStoreLoss runs f in subtests, for a static and a dynamic group and for each way of losing
// the store: reads fail at once, or block until their context ends. a is the first of n workers,
// whose store is lost before f runs, and log has its log.
func forEachStoreLoss(t *testing.T, n int, f func(t *testing.T, a *agent.Agent, log *loglines.Lines)) {
	ways := map[string]func(ctx context.Context) error{
		"ended": func(context.Context) error {
			return &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
		},
		"stopped": func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		},
	}
	for name, way := range ways {
		for _, static := range []bool{true, false} {
			t.Run(fmt.Sprint(name, " static=", static), func(t *testing.T) {
				var s losableStore
				var log loglines.Lines
				edit := func(rank int, c *agent.Config) {
					if !static {
						c.WorldSize = 0
					}
					if rank == 0 {
						s.Store = c.Store
						c.Store, c.Logger = &s, log.Logger()
					}
				}
				simulate(t, n, edit, func(t *testing.T, group []*agent.Agent) {
					s.lost.Store(&way)
					f(t, group[0], &log)
				})
			})
		}
	}
}

// Close of an agent whose store is lost returns nil within a second, and logs that the store still
// lists the worker.
func TestCloseWithoutStore(t *testing.T) {
	forEachStoreLoss(t, 2, func(t *testing.T, a *agent.Agent, log *loglines.Lines) {
		begun := time.Now()
		require.NoError(t, a.Close())
		require.LessOrEqual(t, time.Since(begun), time.Second)
		require.Contains(t, log.String(), "the store still lists this worker")
	})
}

// Shutdown returns an *Error if the store is lost so that the worker cannot leave the group. A
// later Close returns nil.
func TestShutdownWithoutStore(t *testing.T) {
	forEachStoreLoss(t, 1, func(t *testing.T, a *agent.Agent, _ *loglines.Lines) {
		err := a.Shutdown(t.Context())
		var e *agent.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, "shutdown", e.Op)
		require.NoError(t, a.Close())
	})
}
