package rref_test

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// group is the workers of a test, by rank, in one process.
type group struct {
	t      *testing.T
	agents []*agent.Agent
	refs   []*rref.Refs
}

// start joins n workers over a network in memory. The caller shuts them down.
func start(t *testing.T, n int, configure func(rank int, c *agent.Config, o *rref.Options)) *group {
	t.Helper()
	network := mem.NewNetwork()
	s := store.NewMemory(store.Limits{})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	g := &group{t: t, agents: make([]*agent.Agent, n), refs: make([]*rref.Refs, n)}
	errs := make([]error, n)
	var wg sync.WaitGroup
	for rank := range n {
		c := agent.Config{Name: fmt.Sprint("worker", rank), Rank: rank, WorldSize: n, Store: s, Logger: slog.New(slog.DiscardHandler)}
		c.Listen = []string{"mem://"}
		c.NewContext = func(o pipe.Options) (*pipe.Context, error) {
			o.Transports = []pipe.TransportEntry{{Name: "mem", Transport: mem.New(network)}}
			o.Channels = []pipe.ChannelEntry{{Name: "xth", Factory: xth.New()}}
			return pipe.New(o)
		}
		o := rref.Options{}
		serve(&c, &o)
		if configure != nil {
			configure(rank, &c, &o)
		}
		g.refs[rank] = rref.New(o)
		c.Extensions = append([]agent.Extension{g.refs[rank]}, c.Extensions...)
		wg.Go(func() { g.agents[rank], errs[rank] = agent.Join(t.Context(), c) })
	}
	wg.Wait()
	require.Equal(t, make([]error, n), errs)
	t.Cleanup(func() {
		for _, a := range g.agents {
			_ = a.Close() // of a test that has failed
		}
	})
	return g
}

// shutdown shuts all workers down and returns their errors.
func (g *group) shutdown() []error {
	errs := make([]error, len(g.agents))
	var wg sync.WaitGroup
	for i, a := range g.agents {
		wg.Go(func() { errs[i] = a.Shutdown(g.t.Context()) })
	}
	wg.Wait()
	return errs
}

// run runs f with n workers over a network in memory, and then shuts them down and checks that no
// reference is left.
func run(t *testing.T, n int, configure func(rank int, c *agent.Config, o *rref.Options), f func(t *testing.T, g *group)) {
	t.Helper()
	g := start(t, n, configure)
	f(t, g)
	require.Equal(t, make([]error, n), g.shutdown())
	for _, r := range g.refs {
		require.Equal(t, empty, r.Metrics())
	}
}

var empty = map[string]int64{"owner_rrefs": 0, "forks": 0, "pending_children": 0, "user_rrefs": 0, "pending_users": 0}

// requireEmpty waits until no worker has a value or a reference, and lets the garbage collector find
// the references that handlers have returned.
func (g *group) requireEmpty() {
	g.t.Helper()
	require.Eventually(g.t, func() bool {
		runtime.GC()
		for _, r := range g.refs {
			if !maps.Equal(empty, r.Metrics()) {
				return false
			}
		}
		return true
	}, testwait.Limit, 20*time.Millisecond, "a reference is left")
}

type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) Add(_ context.Context, n int) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n += n
	return c.n, nil
}

func (c *counter) Fail(context.Context, agent.None) (int, error) { return 0, errWhy }

var (
	errWhy = errors.New("why")

	double     = agent.NewFunc[int, int]("test.double")
	fails      = agent.NewFunc[int, int]("test.fails")
	slow       = agent.NewFunc[time.Duration, int]("test.slow")
	newCounter = agent.NewFunc[int, *counter]("test.newCounter")
	fetch      = agent.NewFunc[*rref.Ref[int], int]("test.fetch")
	pass       = agent.NewFunc[*rref.Ref[int], *rref.Ref[int]]("test.pass")
	hold       = agent.NewFunc[holdArgs, agent.None]("test.hold")
	makeOn     = agent.NewFunc[string, *rref.Ref[int]]("test.makeOn")
	forward    = agent.NewFunc[forwardArgs, int]("test.forward")

	add      = rref.NewMethod[*counter, int, int]("Add")
	failNow  = rref.NewMethod[*counter, agent.None, int]("Fail")
	unserved = rref.NewMethod[*counter, agent.None, int]("Unserved")
)

type holdArgs struct{ Refs map[string][]*rref.Ref[int] }

type forwardArgs struct {
	Path []string
	Ref  *rref.Ref[int]
}

// held is the references that test.hold keeps.
var held struct {
	mu   sync.Mutex
	refs []*rref.Ref[int]
}

func releaseHeld(t *testing.T) {
	held.mu.Lock()
	defer held.mu.Unlock()
	for _, f := range held.refs {
		require.NoError(t, f.Release(t.Context()))
	}
	held.refs = nil
}

func serve(c *agent.Config, o *rref.Options) {
	c.Funcs = agent.Funcs{
		double.Serve(func(_ context.Context, n int) (int, error) { return 2 * n, nil }),
		fails.Serve(func(context.Context, int) (int, error) { return 0, errWhy }),
		slow.ServeAsync(func(_ context.Context, d time.Duration) *agent.Future[int] {
			f := future.New[int]()
			time.AfterFunc(d, func() { _ = f.Set(7) })
			return f
		}),
		newCounter.Serve(func(_ context.Context, n int) (*counter, error) { return &counter{n: n}, nil }),
		fetch.Serve(func(ctx context.Context, f *rref.Ref[int]) (int, error) {
			defer f.Release(ctx)
			return f.ToHere(ctx)
		}),
		pass.Serve(func(_ context.Context, f *rref.Ref[int]) (*rref.Ref[int], error) { return f, nil }),
		hold.Serve(func(_ context.Context, args holdArgs) (agent.None, error) {
			held.mu.Lock()
			defer held.mu.Unlock()
			for _, refs := range args.Refs {
				held.refs = append(held.refs, refs...)
			}
			return agent.None{}, nil
		}),
		makeOn.Serve(func(ctx context.Context, name string) (*rref.Ref[int], error) {
			return rref.Remote(ctx, agent.FromContext(ctx), agent.To(name), double, 21), nil
		}),
		forward.Serve(func(ctx context.Context, args forwardArgs) (int, error) {
			defer args.Ref.Release(ctx)
			if len(args.Path) == 0 {
				return args.Ref.ToHere(ctx)
			}
			return forward.Call(ctx, agent.FromContext(ctx), agent.To(args.Path[0]), forwardArgs{args.Path[1:], args.Ref})
		}),
	}
	o.Methods = rref.Methods{add.Serve((*counter).Add), failNow.Serve((*counter).Fail)}
}

// TestRemote checks that a reference to a value on another worker, or on the same one, is made and
// fetched, and that the value is gone after its release.
func TestRemote(t *testing.T) {
	run(t, 2, nil, func(t *testing.T, g *group) {
		for _, to := range []string{"worker1", "worker0"} {
			f := rref.Remote(t.Context(), g.agents[0], agent.To(to), double, 4)
			require.Equal(t, to, f.OwnerName())
			require.Equal(t, to == "worker0", f.IsOwner())
			for range 2 {
				v, err := f.ToHere(t.Context())
				require.NoError(t, err)
				require.Equal(t, 8, v)
			}
			_, err := f.Created().Wait(t.Context())
			require.NoError(t, err)
			require.True(t, f.IsConfirmed())
			typ, err := f.Type(t.Context())
			require.NoError(t, err)
			require.Equal(t, "int", typ)
			v, err := f.Local()
			if to == "worker0" {
				require.NoError(t, err)
				require.Equal(t, 8, v)
			} else {
				require.ErrorIs(t, err, rref.ErrNotOwner)
			}
			require.NoError(t, f.Release(t.Context()))
			require.NoError(t, f.Release(t.Context()))
			_, err = f.ToHere(t.Context())
			require.ErrorIs(t, err, rref.ErrReleased)
			g.requireEmpty()
		}
	})
}

// TestRemoteKinds checks references to the results of operators and of functions called by name.
func TestRemoteKinds(t *testing.T) {
	run(t, 2, nil, func(t *testing.T, g *group) {
		ones, err := tensor.Zeros(tensor.F32, 2)
		require.NoError(t, err)
		require.NoError(t, tensor.Fill(ones, float32(1)))
		for _, to := range []agent.To{"worker1", "worker0"} {
			f := rref.RemoteOp[*tensor.Tensor](t.Context(), g.agents[0], to, "aten::add", ones, ones)
			x, err := f.ToHere(t.Context())
			require.NoError(t, err)
			data, err := tensor.Data[float32](x)
			require.NoError(t, err)
			require.Equal(t, []float32{2, 2}, data)
			require.NoError(t, f.Release(t.Context()))

			i := rref.RemoteInvoke[int](t.Context(), g.agents[0], to, double.Name(), 5)
			v, err := i.ToHere(t.Context())
			require.NoError(t, err)
			require.Equal(t, 10, v)
			require.NoError(t, i.Release(t.Context()))
		}
		g.requireEmpty()
	})
}

// TestRemoteFails checks that the error of a function that makes a value is that of ToHere, while the
// reference is confirmed.
func TestRemoteFails(t *testing.T) {
	run(t, 2, nil, func(t *testing.T, g *group) {
		for _, to := range []agent.To{"worker1", "worker0"} {
			f := rref.Remote(t.Context(), g.agents[0], to, fails, 4)
			_, err := f.ToHere(t.Context())
			require.ErrorContains(t, err, "why")
			require.NotErrorIs(t, err, rref.ErrCreation)
			_, err = f.Created().Wait(t.Context())
			require.NoError(t, err)
			require.NoError(t, f.Release(t.Context()))
		}
		f := rref.Remote(t.Context(), g.agents[0], "nobody", double, 4)
		_, err := f.Created().Wait(t.Context())
		require.ErrorIs(t, err, rref.ErrCreation)
		require.ErrorIs(t, err, agent.ErrNoWorker)
		_, err = f.ToHere(t.Context())
		require.ErrorIs(t, err, rref.ErrCreation)
		require.NoError(t, f.Release(t.Context()))
		unknown := rref.Remote(t.Context(), g.agents[0], "worker1", agent.NewFunc[int, int]("test.unknown"), 4)
		_, err = unknown.ToHere(t.Context())
		require.ErrorIs(t, err, agent.ErrNoFunction)
		require.NoError(t, unknown.Release(t.Context()))
		g.requireEmpty()
	})
}

// TestFetchTimeout checks that a fetch that runs into its limit does no harm to the reference, and
// that a fetch waits until the value exists.
func TestFetchTimeout(t *testing.T) {
	t.Parallel()
	run(t, 2, nil, func(t *testing.T, g *group) {
		f := rref.Remote(t.Context(), g.agents[0], "worker1", slow, time.Second)
		_, err := f.ToHere(t.Context(), agent.WithTimeout(10*time.Millisecond))
		require.ErrorIs(t, err, agent.ErrTimeout)
		v, err := f.ToHere(t.Context())
		require.NoError(t, err)
		require.Equal(t, 7, v)
		require.NoError(t, f.Release(t.Context()))
		g.requireEmpty()
	})
}

// TestSharing checks references that are passed in each direction between an owner and users.
func TestSharing(t *testing.T) {
	for name, share := range map[string]func(g *group, f *rref.Ref[int]) (int, error){
		"user to owner": func(g *group, f *rref.Ref[int]) (int, error) {
			return fetch.Call(g.t.Context(), g.agents[0], "worker1", f)
		},
		"user to user": func(g *group, f *rref.Ref[int]) (int, error) {
			return fetch.Call(g.t.Context(), g.agents[0], "worker2", f)
		},
		"user to itself": func(g *group, f *rref.Ref[int]) (int, error) {
			return fetch.Call(g.t.Context(), g.agents[0], "worker0", f)
		},
		"chain": func(g *group, f *rref.Ref[int]) (int, error) {
			path := []string{"worker0", "worker1", "worker2", "worker3", "worker2", "worker1"}
			return forward.Call(g.t.Context(), g.agents[0], "worker3", forwardArgs{path, f})
		},
		"and back": func(g *group, f *rref.Ref[int]) (int, error) {
			back, err := pass.Call(g.t.Context(), g.agents[0], "worker2", f)
			if err != nil {
				return 0, err
			}
			defer back.Release(g.t.Context())
			if !back.Equal(f) {
				return 0, errors.New("another value")
			}
			return back.ToHere(g.t.Context())
		},
		"from the owner": func(g *group, f *rref.Ref[int]) (int, error) {
			back, err := pass.Call(g.t.Context(), g.agents[0], "worker1", f)
			if err != nil {
				return 0, err
			}
			defer back.Release(g.t.Context())
			return back.ToHere(g.t.Context())
		},
		"made by another": func(g *group, _ *rref.Ref[int]) (int, error) {
			made, err := makeOn.Call(g.t.Context(), g.agents[0], "worker2", "worker3")
			if err != nil {
				return 0, err
			}
			defer made.Release(g.t.Context())
			return made.ToHere(g.t.Context())
		},
		"made here by another": func(g *group, _ *rref.Ref[int]) (int, error) {
			made, err := makeOn.Call(g.t.Context(), g.agents[0], "worker2", "worker0")
			if err != nil {
				return 0, err
			}
			defer made.Release(g.t.Context())
			if !made.IsOwner() {
				return 0, errors.New("not the owner")
			}
			return made.Local()
		},
		"own value": func(g *group, _ *rref.Ref[int]) (int, error) {
			own := rref.Own(g.agents[0], 42)
			defer own.Release(g.t.Context())
			return fetch.Call(g.t.Context(), g.agents[0], "worker2", own)
		},
		"own value to itself": func(g *group, _ *rref.Ref[int]) (int, error) {
			own := rref.Own(g.agents[0], 42)
			defer own.Release(g.t.Context())
			return fetch.Call(g.t.Context(), g.agents[0], "worker0", own)
		},
		"remote argument": func(g *group, f *rref.Ref[int]) (int, error) {
			n := rref.Remote(g.t.Context(), g.agents[0], "worker2", fetch, f)
			defer n.Release(g.t.Context())
			return n.ToHere(g.t.Context())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each waits for the garbage collector
			run(t, 4, nil, func(t *testing.T, g *group) {
				f := rref.Remote(t.Context(), g.agents[0], "worker1", double, 21)
				v, err := share(g, f)
				require.NoError(t, err)
				require.Equal(t, 42, v)
				require.NoError(t, f.Release(t.Context()))
				g.requireEmpty()
			})
		})
	}
}

// TestValueIsKept checks that a value stays as long as any worker has a reference to it, and goes
// with the last one.
func TestValueIsKept(t *testing.T) {
	run(t, 3, nil, func(t *testing.T, g *group) {
		f := rref.Remote(t.Context(), g.agents[0], "worker1", double, 21)
		_, err := hold.Call(t.Context(), g.agents[0], "worker2", holdArgs{map[string][]*rref.Ref[int]{"a": {f, f}, "b": {f}}})
		require.NoError(t, err)
		require.NoError(t, f.Release(t.Context()))
		require.Eventually(t, func() bool { return g.refs[1].Metrics()["forks"] == 1 }, testwait.Limit, time.Millisecond)
		require.EqualValues(t, 1, g.refs[1].Metrics()["owner_rrefs"])
		require.EqualValues(t, 0, g.refs[0].Metrics()["user_rrefs"])
		v, err := held.refs[0].ToHere(t.Context())
		require.NoError(t, err)
		require.Equal(t, 42, v)
		releaseHeld(t)
		g.requireEmpty()
	})
}

// TestMethods checks calls of methods of a value in the three modes, from another worker and from the
// owner.
func TestMethods(t *testing.T) {
	run(t, 2, nil, func(t *testing.T, g *group) {
		for _, to := range []agent.To{"worker1", "worker0"} {
			f := rref.Remote(t.Context(), g.agents[0], to, newCounter, 1)
			n, err := add.Call(t.Context(), f, 2)
			require.NoError(t, err)
			require.Equal(t, 3, n)
			n, err = add.Go(t.Context(), f, 3).Wait(t.Context())
			require.NoError(t, err)
			require.Equal(t, 6, n)
			kept := add.Remote(t.Context(), f, 4)
			n, err = kept.ToHere(t.Context())
			require.NoError(t, err)
			require.Equal(t, 10, n)
			_, err = failNow.Call(t.Context(), f, agent.None{})
			require.ErrorContains(t, err, "why")
			_, err = unserved.Call(t.Context(), f, agent.None{})
			require.ErrorIs(t, err, rref.ErrNoMethod)
			require.ErrorContains(t, err, "*rref_test.counter has no method Unserved")
			_, err = unserved.Go(t.Context(), f, agent.None{}).Wait(t.Context())
			require.ErrorIs(t, err, rref.ErrNoMethod)
			bad := unserved.Remote(t.Context(), f, agent.None{})
			_, err = bad.ToHere(t.Context())
			require.ErrorIs(t, err, rref.ErrNoMethod)
			for _, release := range []func(context.Context) error{f.Release, kept.Release, bad.Release} {
				require.NoError(t, release(t.Context()))
			}
			g.requireEmpty()
		}
	})
}

// TestGarbageCollected checks that a reference that the application has forgotten is released.
func TestGarbageCollected(t *testing.T) {
	run(t, 2, nil, func(t *testing.T, g *group) {
		func() {
			f := rref.Remote(t.Context(), g.agents[0], "worker1", double, 21)
			_, err := f.ToHere(t.Context())
			require.NoError(t, err)
		}()
		g.requireEmpty()
	})
}

// TestOtherEncodings checks that a reference is not encoded outside of a call.
func TestOtherEncodings(t *testing.T) {
	run(t, 1, nil, func(t *testing.T, g *group) {
		f := rref.Own(g.agents[0], 1)
		_, err := json.Marshal(f)
		require.ErrorIs(t, err, rref.ErrEncoding)
		require.ErrorIs(t, gob.NewEncoder(&bytes.Buffer{}).Encode(f), rref.ErrEncoding)
		require.NoError(t, f.Release(t.Context()))
	})
}

// TestNoReferences checks the errors of references that are nil, or whose agent is closed.
func TestNoReferences(t *testing.T) {
	var f *rref.Ref[int]
	_, err := f.ToHere(t.Context())
	require.ErrorIs(t, err, rref.ErrNoAgent)
	require.NoError(t, f.Release(t.Context()))
	require.Equal(t, "nil rref", f.String())
	_, err = rref.Of(nil)
	require.ErrorIs(t, err, rref.ErrNoAgent)
	var own, remote *rref.Ref[int]
	run(t, 2, func(_ int, _ *agent.Config, o *rref.Options) { o.IgnoreLeaks = true }, func(t *testing.T, g *group) {
		own, remote = rref.Own(g.agents[0], 1), rref.Remote(t.Context(), g.agents[0], "worker1", double, 1)
		require.NoError(t, own.Release(t.Context()))
	})
	_, err = remote.ToHere(t.Context())
	require.ErrorIs(t, err, rref.ErrReleased)
}

// TestLeak checks that Shutdown of the owner lists references that other workers do not release, and
// succeeds with IgnoreLeaks.
func TestLeak(t *testing.T) {
	for _, ignore := range []bool{false, true} {
		t.Run(fmt.Sprint("ignored ", ignore), func(t *testing.T) {
			g := start(t, 2, func(rank int, _ *agent.Config, o *rref.Options) {
				o.KeepAtShutdown, o.IgnoreLeaks = rank == 0, ignore
			})
			f := rref.Remote(t.Context(), g.agents[0], "worker1", double, 1)
			_, err := f.ToHere(t.Context())
			require.NoError(t, err)
			errs := g.shutdown()
			require.NoError(t, errs[0])
			if ignore {
				require.NoError(t, errs[1])
			} else {
				require.ErrorIs(t, errs[1], rref.ErrLeak)
				require.ErrorContains(t, errs[1], "value 0.0 (int): a reference of worker0")
			}
			runtime.KeepAlive(f)
		})
	}
}
