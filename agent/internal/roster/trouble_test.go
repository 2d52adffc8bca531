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
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
)

// outage is a store that cannot be reached for some time. Calls under way end too.
type outage struct {
	store.Store
	mu   sync.Mutex
	life context.Context
	end  context.CancelFunc
}

func newOutage(s store.Store) *outage {
	o := &outage{Store: s}
	o.back(s)
	return o
}

// back ends the outage, with what the store has now.
func (o *outage) back(s store.Store) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.Store = s
	o.life, o.end = context.WithCancel(context.Background())
}

func (o *outage) call(ctx context.Context, f func(ctx context.Context, s store.Store) error) error {
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

func (o *outage) Set(ctx context.Context, key string, value []byte) error {
	return o.call(ctx, func(ctx context.Context, s store.Store) error { return s.Set(ctx, key, value) })
}

func (o *outage) Get(ctx context.Context, key string) (value []byte, err error) {
	err = o.call(ctx, func(ctx context.Context, s store.Store) error {
		value, err = s.Get(ctx, key)
		return err
	})
	return value, err
}

func (o *outage) Wait(ctx context.Context, keys ...string) error {
	return o.call(ctx, func(ctx context.Context, s store.Store) error { return s.Wait(ctx, keys...) })
}

func (o *outage) CompareAndSet(ctx context.Context, key string, expected, desired []byte) (value []byte, err error) {
	err = o.call(ctx, func(ctx context.Context, s store.Store) error {
		value, err = s.CompareAndSet(ctx, key, expected, desired)
		return err
	})
	return value, err
}

// A store that stops and comes back with its content while a member waits.
func TestStoreStopsForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := onMemory(t)()
		o := newOutage(s)
		a, b := worker("a", 0), worker("b", 1)
		waiting := joining(t.Context(), o, a, 2)
		synctest.Wait()
		o.end()
		<-time.NewTimer(time.Hour).C
		o.back(s)
		r := mustJoin(t, joining(t.Context(), s, b, 2))
		wantMembers(t, r, a, b)
		wantMembers(t, mustJoin(t, waiting), a, b)
	})
}

func TestStoreStopsForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutage(onMemory(t)())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begun := time.Now()
		waiting := joining(ctx, o, worker("a", 0), 2)
		synctest.Wait()
		o.end()
		got := <-waiting
		require.ErrorIs(t, got.err, context.DeadlineExceeded)
		require.ErrorIs(t, got.err, syscall.ECONNREFUSED)
		require.ErrorContains(t, got.err, "who has not joined is not known")
		require.LessOrEqual(t, time.Since(begun), time.Minute+2*parting)
	})
}

func TestStoreComesBackWithoutItsContent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutage(onMemory(t)())
		waiting := joining(t.Context(), o, worker("a", 0), 2)
		synctest.Wait()
		o.end()
		empty := onMemory(t)()
		o.back(empty)
		failsJoin(t, waiting, ErrLost)

		// Others may have begun anew.
		o = newOutage(onMemory(t)())
		r := comes(t, o, worker("a", -1))
		o.back(empty)
		require.ErrorIs(t, r.Refresh(t.Context()), ErrLost)
		comes(t, o, worker("b", -1))
		require.ErrorIs(t, r.Refresh(t.Context()), ErrLost)
		require.ErrorIs(t, r.Leave(t.Context()), ErrLost)
		require.ErrorIs(t, r.Watch(t.Context(), func(Change) {}), ErrLost)
	})
}

// A server that ends the connection whenever it is asked for something will do so
// again.
func TestServerThatRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refuses := stage{onMemory(t)(), func() error { return &store.Error{Op: "get", Err: store.ErrDisconnected} }}
		_, err := JoinStatic(t.Context(), refuses, "group", worker("a", 0), 1)
		require.ErrorIs(t, err, store.ErrDisconnected)
	})
}

// A closed store is no reason to wait.
func TestStoreThatIsClosed(t *testing.T) {
	s := onMemory(t)()
	waiting := joining(t.Context(), s, worker("a", 0), 2)
	require.NoError(t, s.Close())
	failsJoin(t, waiting, store.ErrClosed)
}

// relay brings connections to a server, and can be stopped.
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

// The same with a real server, which members of a static and of a dynamic group
// lose for a while.
func TestServerOutOfReach(t *testing.T) {
	server, err := store.Serve(t.Context(), "127.0.0.1:0", store.ServerOptions{})
	require.NoError(t, err)
	defer server.Close()
	between := newRelay(t, server.Addr())
	far := dial(t, between.addr)

	a, b := worker("a", 0), worker("b", 1)
	waiting := joining(t.Context(), far, a, 2)
	moving, err := JoinDynamic(t.Context(), far, "moving", worker("a", -1))
	require.NoError(t, err)
	changes := make(chan Change, 1)
	ctx, cancel := context.WithCancel(t.Context())
	watching := patience.Start(func() error { return moving.Watch(ctx, func(c Change) { changes <- c }) })
	_, err = store.Await(t.Context(), server.Store(), newShelf(far, "group").nameKey(1, "a"))
	require.NoError(t, err)

	between.stop()
	_, err = JoinDynamic(t.Context(), server.Store(), "moving", worker("b", -1))
	require.NoError(t, err)
	second := joining(t.Context(), server.Store(), b, 2)
	between.start(t)
	wantMembers(t, mustJoin(t, waiting), a, b)
	wantMembers(t, mustJoin(t, second), a, b)
	require.Equal(t, "b", patience.Finish(t, changes).Member.Name)
	cancel()
	require.ErrorIs(t, patience.Finish(t, watching), context.Canceled)
}

func TestServerStartedAgain(t *testing.T) {
	server, err := store.Serve(t.Context(), "127.0.0.1:0", store.ServerOptions{})
	require.NoError(t, err)
	far := dial(t, server.Addr())
	waiting := joining(t.Context(), far, worker("a", 0), 2)
	_, err = store.Await(t.Context(), server.Store(), newShelf(far, "group").nameKey(1, "a"))
	require.NoError(t, err)
	require.NoError(t, server.Close())
	again, err := store.Serve(t.Context(), server.Addr(), store.ServerOptions{})
	require.NoError(t, err)
	defer again.Close()
	failsJoin(t, waiting, ErrLost)
}

// Who leaves now does not wait for a store to come back, but for one that has only ended
// the connections to it.
func TestLeaveNow(t *testing.T) {
	for _, static := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := onMemory(t)()
			o := newOutage(s)
			var drops int
			dropping := stage{o, func() error {
				if drops == 0 {
					return nil
				}
				drops--
				return &store.Error{Op: "get", Err: store.ErrDisconnected}
			}}
			var r *Roster
			if static {
				r = mustJoin(t, joining(t.Context(), dropping, worker("a", 0), 1))
			} else {
				r = comes(t, dropping, worker("a", -1))
			}
			o.end()
			begun := time.Now()
			require.ErrorIs(t, r.LeaveNow(t.Context()), syscall.ECONNREFUSED)
			require.Less(t, time.Since(begun), time.Second)
			o.back(s)
			drops = 4
			require.NoError(t, r.LeaveNow(t.Context()))
			require.Zero(t, drops)
			g := seen(t, s, "group")
			require.True(t, g.vacant())
		})
	}
}
