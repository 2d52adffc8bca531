package roster

import (
	"context"
	"crypto/rand"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
)

// opener returns a handle on one store, as each worker would have one.
type opener func() store.Store

// backends runs a test on every kind of store.
func backends(t *testing.T, test func(t *testing.T, open opener)) {
	for name, make := range map[string]func(t *testing.T) opener{"memory": onMemory, "file": onFile, "tcp": onTCP} {
		t.Run(name, func(t *testing.T) { test(t, make(t)) })
	}
}

func onMemory(t *testing.T) opener {
	s := store.NewMemory(store.Limits{})
	t.Cleanup(func() { s.Close() })
	return func() store.Store { return s }
}

func onFile(t *testing.T) opener {
	path := filepath.Join(t.TempDir(), "store")
	return func() store.Store {
		s, err := store.OpenFile(t.Context(), path, store.Limits{})
		require.NoError(t, err)
		t.Cleanup(func() { s.Close() })
		return s
	}
}

func onTCP(t *testing.T) opener {
	server, err := store.Serve(t.Context(), "127.0.0.1:0", store.ServerOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { server.Close() })
	return func() store.Store { return dial(t, server.Addr()) }
}

func dial(t *testing.T, addr string) *store.Client {
	t.Helper()
	c, err := store.Dial(t.Context(), addr, store.ClientOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// worker is a member that was just started.
func worker(name string, rank int) Member {
	m := Member{Name: name, Rank: rank, MaxVersion: 1, URLs: []string{"uv://" + name}, Extra: []byte("of " + name)}
	_, _ = rand.Read(m.Incarnation[:])
	return m
}

// started is a worker that was started again.
func started(m Member) Member { return worker(m.Name, m.Rank) }

type joined struct {
	r   *Roster
	err error
}

func joining(ctx context.Context, s store.Store, m Member, world int) <-chan joined {
	return patience.Start(func() joined {
		r, err := JoinStatic(ctx, s, "group", m, world)
		return joined{r, err}
	})
}

// joiningToWithdraw is joining, and the store has any time to take back what was
// written.
func joiningToWithdraw(ctx context.Context, s store.Store, m Member, world int) <-chan joined {
	j := newJoiner(s, "group", m, world)
	j.parting = time.Hour
	return patience.Start(func() joined {
		r, err := j.join(ctx)
		return joined{r, err}
	})
}

func mustJoin(t *testing.T, ch <-chan joined) *Roster {
	t.Helper()
	got := patience.Finish(t, ch)
	require.NoError(t, got.err)
	return got.r
}

func failsJoin(t *testing.T, ch <-chan joined, want error) error {
	t.Helper()
	got := patience.Finish(t, ch)
	require.ErrorIs(t, got.err, want)
	return got.err
}

// formed is a complete static group of these members.
func formed(t *testing.T, open opener, members ...Member) []*Roster {
	t.Helper()
	var coming []<-chan joined
	for _, m := range members {
		coming = append(coming, joining(t.Context(), open(), m, len(members)))
	}
	var rosters []*Roster
	for _, ch := range coming {
		rosters = append(rosters, mustJoin(t, ch))
	}
	return rosters
}

// wantMembers wants these members, in the order of their ranks.
func wantMembers(t *testing.T, r *Roster, want ...Member) {
	t.Helper()
	got := r.Members()
	for i := range want {
		want[i].Static, want[i].Replace = r.static, false
	}
	require.Equal(t, want, got)
}

func seen(t *testing.T, s store.Store, group string) *gate {
	t.Helper()
	g, err := newShelf(s, group).look(t.Context())
	require.NoError(t, err)
	return g
}

// counted notes which keys were written, and how many calls were made.
type counted struct {
	store.Store
	mu    sync.Mutex
	calls int
	keys  map[string]bool
}

func (c *counted) note(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	c.keys[key] = true
}

func (c *counted) Set(ctx context.Context, key string, value []byte) error {
	c.note(key)
	return c.Store.Set(ctx, key, value)
}

func (c *counted) Wait(ctx context.Context, keys ...string) error {
	c.note("")
	return c.Store.Wait(ctx, keys...)
}

func (c *counted) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	c.note(key)
	return c.Store.CompareAndSet(ctx, key, expected, desired)
}
