package roster

import (
	"context"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// outageStore is a store that cannot be reached for a while. Pending calls fail too.
type outageStore struct {
	store.Store
	mu   sync.Mutex
	life context.Context
	end  context.CancelFunc
}

func newOutageStore(s store.Store) *outageStore {
	o := &outageStore{Store: s}
	o.back(s)
	return o
}

// back ends the outage: from then on the calls to o go to s.
func (o *outageStore) back(s store.Store) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.Store = s
	o.life, o.end = context.WithCancel(context.Background())
}

func (o *outageStore) call(ctx context.Context, f func(ctx context.Context, s store.Store) error) error {
	o.mu.Lock()
	s, life := o.Store, o.life
	o.mu.Unlock()
	if life.Err() != nil {
		return &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	bound, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(life, cancel)()
	err := f(bound, s)
	if life.Err() != nil && ctx.Err() == nil {
		return &store.Error{Op: "call", Err: store.ErrDisconnected}
	}
	return err
}

func (o *outageStore) Set(ctx context.Context, key string, value []byte) error {
	return o.call(ctx, func(ctx context.Context, s store.Store) error { return s.Set(ctx, key, value) })
}

func (o *outageStore) Get(ctx context.Context, key string) (value []byte, err error) {
	err = o.call(ctx, func(ctx context.Context, s store.Store) error {
		value, err = s.Get(ctx, key)
		return err
	})
	return value, err
}

func (o *outageStore) Wait(ctx context.Context, keys ...string) error {
	return o.call(ctx, func(ctx context.Context, s store.Store) error { return s.Wait(ctx, keys...) })
}

func (o *outageStore) CompareAndSet(ctx context.Context, key string, expected, desired []byte) (value []byte, err error) {
	err = o.call(ctx, func(ctx context.Context, s store.Store) error {
		value, err = s.CompareAndSet(ctx, key, expected, desired)
		return err
	})
	return value, err
}

// TestStoreOutage tests that a member that waits joins its group after the store was unreachable
// for an hour and has come back with its content.
func TestStoreOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memoryStore(t)()
		o := newOutageStore(s)
		a, b := worker("a", 0), worker("b", 1)
		waiting := startJoin(t.Context(), o, a, 2)
		synctest.Wait()
		o.end()
		<-time.NewTimer(time.Hour).C
		o.back(s)
		r := mustJoin(t, startJoin(t.Context(), s, b, 2))
		requireMembers(t, r, a, b)
		requireMembers(t, mustJoin(t, waiting), a, b)
	})
}

func TestStoreOutageUntilTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutageStore(memoryStore(t)())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begun := time.Now()
		waiting := startJoin(ctx, o, worker("a", 0), 2)
		synctest.Wait()
		o.end()
		got := <-waiting
		require.ErrorIs(t, got.err, context.DeadlineExceeded)
		require.ErrorIs(t, got.err, syscall.ECONNREFUSED)
		require.ErrorContains(t, got.err, "the ranks that have not joined are unknown")
		require.LessOrEqual(t, time.Since(begun), time.Minute+2*cleanupTimeout)
	})
}

func TestStoreLosesContent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutageStore(memoryStore(t)())
		waiting := startJoin(t.Context(), o, worker("a", 0), 2)
		synctest.Wait()
		o.end()
		empty := memoryStore(t)()
		o.back(empty)
		requireJoinError(t, waiting, ErrLost)

		// Other members may have formed the group again.
		o = newOutageStore(memoryStore(t)())
		r := mustJoinDynamic(t, o, worker("a", -1))
		o.back(empty)
		require.ErrorIs(t, r.Refresh(t.Context()), ErrLost)
		mustJoinDynamic(t, o, worker("b", -1))
		require.ErrorIs(t, r.Refresh(t.Context()), ErrLost)
		require.ErrorIs(t, r.Leave(t.Context()), ErrLost)
		require.ErrorIs(t, r.Watch(t.Context(), func(Change) {}), ErrLost)
	})
}

// TestStoreDisconnectsEveryCall tests that JoinStatic fails with ErrDisconnected, instead of
// retrying without end, if the store closes the connection at every request.
func TestStoreDisconnectsEveryCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refuses := hookedStore{memoryStore(t)(), func() error { return &store.Error{Op: "get", Err: store.ErrDisconnected} }}
		_, err := JoinStatic(t.Context(), refuses, "group", worker("a", 0), 1)
		require.ErrorIs(t, err, store.ErrDisconnected)
	})
}

// TestClosedStore tests that a join that waits fails with ErrClosed once its store is closed.
func TestClosedStore(t *testing.T) {
	s := memoryStore(t)()
	waiting := startJoin(t.Context(), s, worker("a", 0), 2)
	require.NoError(t, s.Close())
	requireJoinError(t, waiting, store.ErrClosed)
}

// relay forwards connections to a server, and can be stopped.
type relay struct {
	addr, server string
	stop         func()
}

func newRelay(t *testing.T, server string) *relay {
	r := &relay{addr: "127.0.0.1:0", server: server}
	r.start(t)
	t.Cleanup(func() { r.stop() })
	return r
}

func (r *relay) start(t *testing.T) {
	l, err := net.Listen("tcp", r.addr)
	require.NoError(t, err)
	r.addr = l.Addr().String()
	var running sync.WaitGroup
	var mu sync.Mutex
	conns := []net.Conn{}
	over := false
	keep := func(c net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		if conns = append(conns, c); over {
			c.Close()
		}
	}
	copies := func(to, from net.Conn) {
		_, _ = to.(*net.TCPConn).ReadFrom(from)
		to.Close()
	}
	running.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			keep(near)
			far, err := net.Dial("tcp", r.server)
			if err != nil {
				near.Close()
				continue
			}
			keep(far)
			running.Go(func() { copies(near, far) })
			running.Go(func() { copies(far, near) })
		}
	})
	r.stop = sync.OnceFunc(func() {
		l.Close()
		mu.Lock()
		over = true
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		running.Wait()
	})
}

// TestServerUnreachableForAWhile interrupts the TCP connections of a member of a static group and
// of one of a dynamic group. It tests that once the server is reachable again the static member
// joins its group, and the dynamic member learns of a new member.
func TestServerUnreachableForAWhile(t *testing.T) {
	server, err := store.Serve(t.Context(), "127.0.0.1:0", store.ServerOptions{})
	require.NoError(t, err)
	defer server.Close()
	link := newRelay(t, server.Addr())
	far := dial(t, link.addr)

	a, b := worker("a", 0), worker("b", 1)
	waiting := startJoin(t.Context(), far, a, 2)
	moving, err := JoinDynamic(t.Context(), far, "moving", worker("a", -1))
	require.NoError(t, err)
	changes := make(chan Change, 1)
	ctx, cancel := context.WithCancel(t.Context())
	watching := testwait.Start(func() error { return moving.Watch(ctx, func(c Change) { changes <- c }) })
	_, err = store.Await(t.Context(), server.Store(), newKeySpace(far, "group").nameKey(1, "a"))
	require.NoError(t, err)

	link.stop()
	_, err = JoinDynamic(t.Context(), server.Store(), "moving", worker("b", -1))
	require.NoError(t, err)
	second := startJoin(t.Context(), server.Store(), b, 2)
	link.start(t)
	requireMembers(t, mustJoin(t, waiting), a, b)
	requireMembers(t, mustJoin(t, second), a, b)
	require.Equal(t, "b", testwait.Finish(t, changes).Member.Name)
	cancel()
	require.ErrorIs(t, testwait.Finish(t, watching), context.Canceled)
}

func TestServerRestart(t *testing.T) {
	server, err := store.Serve(t.Context(), "127.0.0.1:0", store.ServerOptions{})
	require.NoError(t, err)
	far := dial(t, server.Addr())
	waiting := startJoin(t.Context(), far, worker("a", 0), 2)
	_, err = store.Await(t.Context(), server.Store(), newKeySpace(far, "group").nameKey(1, "a"))
	require.NoError(t, err)
	require.NoError(t, server.Close())
	again, err := store.Serve(t.Context(), server.Addr(), store.ServerOptions{})
	require.NoError(t, err)
	defer again.Close()
	requireJoinError(t, waiting, ErrLost)
}

// TestLeaveNow tests that LeaveNow fails within a second if the store is unreachable, and succeeds
// if the store has only closed a few connections.
func TestLeaveNow(t *testing.T) {
	for _, static := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := memoryStore(t)()
			o := newOutageStore(s)
			var drops int
			dropping := hookedStore{o, func() error {
				if drops == 0 {
					return nil
				}
				drops--
				return &store.Error{Op: "get", Err: store.ErrDisconnected}
			}}
			var r *Roster
			if static {
				r = mustJoin(t, startJoin(t.Context(), dropping, worker("a", 0), 1))
			} else {
				r = mustJoinDynamic(t, dropping, worker("a", -1))
			}
			o.end()
			begun := time.Now()
			require.ErrorIs(t, r.LeaveNow(t.Context()), syscall.ECONNREFUSED)
			require.Less(t, time.Since(begun), time.Second)
			o.back(s)
			drops = 4
			require.NoError(t, r.LeaveNow(t.Context()))
			require.Zero(t, drops)
			g := readGroup(t, s, "group")
			require.True(t, g.available())
		})
	}
}
