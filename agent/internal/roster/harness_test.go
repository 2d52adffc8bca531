package roster

import (
	"context"
	"crypto/rand"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// openFunc returns a handle on one store; each worker has its own.
type openFunc func() store.Store

// forEachStore runs test as a subtest for each kind of store: in memory, in a file, and over TCP.
// The function open of the test opens a new handle on the same store at each call.
func forEachStore(t *testing.T, test func(t *testing.T, open openFunc)) {
	for name, make := range map[string]func(t *testing.T) openFunc{"memory": memoryStore, "file": fileStore, "tcp": tcpStore} {
		t.Run(name, func(t *testing.T) { test(t, make(t)) })
	}
}

func memoryStore(t *testing.T) openFunc {
	s := store.NewMemory(store.Limits{})
	t.Cleanup(func() { s.Close() })
	return func() store.Store { return s }
}

func fileStore(t *testing.T) openFunc {
	path := filepath.Join(t.TempDir(), "store")
	return func() store.Store {
		s, err := store.OpenFile(t.Context(), path, store.Limits{})
		require.NoError(t, err)
		t.Cleanup(func() { s.Close() })
		return s
	}
}

func tcpStore(t *testing.T) openFunc {
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

// worker returns a member with that name and rank and a new random incarnation.
func worker(name string, rank int) Member {
	m := Member{Name: name, Rank: rank, MaxVersion: 1, URLs: []string{"uv://" + name}, Extra: []byte("of " + name)}
	_, _ = rand.Read(m.Incarnation[:])
	return m
}

// restartedMember returns a new incarnation of m: a member with its name and rank, and otherwise
// with the values that worker sets.
func restartedMember(m Member) Member { return worker(m.Name, m.Rank) }

type joined struct {
	r   *Roster
	err error
}

func startJoin(ctx context.Context, s store.Store, m Member, world int) <-chan joined {
	return testwait.Start(func() joined {
		r, err := JoinStatic(ctx, s, "group", m, world)
		return joined{r, err}
	})
}

// startJoinSlowCleanup has m join a static group of world members on a new goroutine, and returns a
// channel that receives the result. Unlike with startJoin, withdrawing the claims may take an hour
// instead of a second.
func startJoinSlowCleanup(ctx context.Context, s store.Store, m Member, world int) <-chan joined {
	j := newStaticJoin(s, "group", m, world)
	j.cleanupTimeout = time.Hour
	return testwait.Start(func() joined {
		r, err := j.join(ctx)
		return joined{r, err}
	})
}

func mustJoin(t *testing.T, ch <-chan joined) *Roster {
	t.Helper()
	got := testwait.Finish(t, ch)
	require.NoError(t, got.err)
	return got.r
}

func requireJoinError(t *testing.T, ch <-chan joined, want error) error {
	t.Helper()
	got := testwait.Finish(t, ch)
	require.ErrorIs(t, got.err, want)
	return got.err
}

// formGroup has members join a static group concurrently, each on a store that open returns, and
// returns their rosters in the same order. It fails the test if one cannot join.
func formGroup(t *testing.T, open openFunc, members ...Member) []*Roster {
	t.Helper()
	var coming []<-chan joined
	for _, m := range members {
		coming = append(coming, startJoin(t.Context(), open(), m, len(members)))
	}
	var rosters []*Roster
	for _, ch := range coming {
		rosters = append(rosters, mustJoin(t, ch))
	}
	return rosters
}

// requireMembers fails the test unless the member list of r equals want, which must be ordered by
// rank. It overwrites the fields Static and Replace of the elements of want with those that r has.
func requireMembers(t *testing.T, r *Roster, want ...Member) {
	t.Helper()
	got := r.Members()
	for i := range want {
		want[i].Static, want[i].Replace = r.static, false
	}
	require.Equal(t, want, got)
}

func readGroup(t *testing.T, s store.Store, group string) *groupState {
	t.Helper()
	g, err := newGroupAccess(s, group, Incarnation{}).readState(t.Context())
	require.NoError(t, err)
	return g
}

// countingStore counts calls and records the keys that were written.
type countingStore struct {
	store.Store
	mu    sync.Mutex
	calls int
	keys  map[string]bool
}

func (c *countingStore) note(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	c.keys[key] = true
}

func (c *countingStore) Set(ctx context.Context, key string, value []byte) error {
	c.note(key)
	return c.Store.Set(ctx, key, value)
}

func (c *countingStore) Wait(ctx context.Context, keys ...string) error {
	c.note("")
	return c.Store.Wait(ctx, keys...)
}

func (c *countingStore) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	c.note(key)
	return c.Store.CompareAndSet(ctx, key, expected, desired)
}

// lookup returns the member with that name in the list that r read last, and whether there is one.
func lookup(r *Roster, name string) (Member, bool) {
	return find(r, func(m Member) bool { return m.Name == name })
}

// find returns the first member in the list that r read last for which matches returns true, and
// whether there is one.
func find(r *Roster, matches func(Member) bool) (Member, bool) {
	members := r.Members()
	i := slices.IndexFunc(members, matches)
	if i < 0 {
		return Member{}, false
	}
	return members[i], true
}

// ofRank returns the member with that rank in the list that r read last, and whether there is one.
func ofRank(r *Roster, rank int) (Member, bool) {
	return find(r, func(m Member) bool { return m.Rank == rank })
}

// isCurrent reports whether the list that r read last has a member with that name and the
// incarnation id.
func isCurrent(r *Roster, name string, id Incarnation) bool {
	m, ok := lookup(r, name)
	return ok && m.Incarnation == id
}
