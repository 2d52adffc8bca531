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

// forEachStoreLoss runs f in a group of n whose first worker loses its store, for each kind of
// loss.
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

// Close does not wait for a lost store, and logs that the store still lists the worker.
func TestCloseWithoutStore(t *testing.T) {
	forEachStoreLoss(t, 2, func(t *testing.T, a *agent.Agent, log *loglines.Lines) {
		begun := time.Now()
		require.NoError(t, a.Close())
		require.LessOrEqual(t, time.Since(begun), time.Second)
		require.Contains(t, log.String(), "the store still lists this worker")
	})
}

// Shutdown returns an error if it cannot leave the group.
func TestShutdownWithoutStore(t *testing.T) {
	forEachStoreLoss(t, 1, func(t *testing.T, a *agent.Agent, _ *loglines.Lines) {
		err := a.Shutdown(t.Context())
		var e *agent.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, "shutdown", e.Op)
		require.NoError(t, a.Close())
	})
}
