package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
)

// journal is the list of calls of extensions, in order.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

func (j *journal) all() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]string(nil), j.lines...)
}

type noteKey string

// notes is an extension that serves "notes.NAME", which returns its argument, and writes its calls
// to a journal.
type notes struct {
	name                             string
	journal                          *journal
	agent                            *agent.Agent
	configureErr, startErr, closeErr error
	drain                            func(context.Context, *agent.Agent) error
}

func (n *notes) Key() any { return noteKey(n.name) }

func (n *notes) echo() agent.Func[int, int] { return agent.NewFunc[int, int]("notes." + n.name) }

func (n *notes) Configure(c *agent.Config) error {
	n.journal.add("configure " + n.name)
	c.Funcs = append(c.Funcs, n.echo().Serve(func(_ context.Context, i int) (int, error) {
		if n.agent == nil {
			return 0, errors.New("not started")
		}
		return i, nil
	}))
	c.Handlers["notes."+n.name] = replying{}
	c.Interceptors = append(c.Interceptors, agent.Interceptor{})
	return n.configureErr
}

func (n *notes) Start(a *agent.Agent) error {
	n.journal.add(fmt.Sprintf("start %s on %s", n.name, a.Self().Name))
	n.agent = a
	return n.startErr
}

func (n *notes) Drain(ctx context.Context) error {
	n.journal.add("drain " + n.name)
	if n.drain != nil {
		return n.drain(ctx, n.agent)
	}
	return nil
}

func (n *notes) Close() error {
	n.journal.add("close " + n.name)
	return n.closeErr
}

func (n *notes) Dump(w io.Writer) error {
	_, err := fmt.Fprintf(w, "notes %s\n", n.name)
	return err
}

func (n *notes) Metrics() map[string]int64 { return map[string]int64{n.name: 1} }

// replying replies to each request without decoding it.
type replying struct{}

func (replying) Open(*agent.Request) (agent.Task, error) { return replying{}, nil }
func (replying) Run(_ context.Context, r *agent.Request) { _ = r.Reply(&agent.None{}) }

// TestExtensionLife checks the order of the calls of two extensions of an agent that is shut down,
// and that what they add to the Config is served and does not change that of the caller.
func TestExtensionLife(t *testing.T) {
	j := &journal{}
	handlers := map[string]agent.Handler{"mine": replying{}}
	first, second := &notes{name: "a", journal: j}, &notes{name: "b", journal: j}
	configure := func(_ int, c *agent.Config) {
		c.Handlers = handlers
		c.Extensions = []agent.Extension{first, second}
	}
	simulate(t, 1, configure, func(t *testing.T, group []*agent.Agent) {
		a := group[0]
		require.Equal(t, []string{"configure a", "configure b", "start a on worker0", "start b on worker0"}, j.all())
		require.Len(t, handlers, 1)
		require.Same(t, second, a.Extension(noteKey("b")))
		require.Nil(t, a.Extension("b"))
		require.Equal(t, []agent.Extension{first, second}, a.Extensions())
		for _, n := range []*notes{first, second} {
			got, err := n.echo().Call(t.Context(), a, "worker0", 7)
			require.NoError(t, err)
			require.Equal(t, 7, got)
			_, err = agent.NewMessageType[agent.None, agent.None]("notes."+n.name).Call(t.Context(), a, "worker0", "", agent.None{})
			require.NoError(t, err)
		}
		var text strings.Builder
		require.NoError(t, a.Dump(&text))
		require.Contains(t, text.String(), "notes a\nnotes b\n")
		require.NoError(t, a.Shutdown(t.Context()))
		require.Equal(t, []string{"drain b", "drain a", "close b", "close a"}, j.all()[4:])
	})
}

// TestExtensionOfClosedAgent checks that an extension is closed without a Shutdown, and that its
// error is that of Close.
func TestExtensionOfClosedAgent(t *testing.T) {
	j, why := &journal{}, errors.New("not tidy")
	a, err := agent.Join(t.Context(), agent.Config{
		Name: "w", Store: newStore(t), Extensions: []agent.Extension{&notes{name: "a", journal: j, closeErr: why}},
	})
	require.NoError(t, err)
	require.ErrorIs(t, a.Close(), why)
	require.Equal(t, []string{"configure a", "start a on w", "close a"}, j.all())
}

func newStore(t *testing.T) store.Store {
	s := store.NewMemory(store.Limits{})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// TestExtensionErrors checks that Join fails with the error of an extension, or for keys that are
// not unique, and closes those extensions that it has started.
func TestExtensionErrors(t *testing.T) {
	why := errors.New("no")
	for name, c := range map[string]struct {
		second agent.Extension
		want   error
		calls  []string
	}{
		"configure":    {&notes{name: "b", configureErr: why}, why, []string{"configure a", "configure b"}},
		"start":        {&notes{name: "b", startErr: why}, why, []string{"configure a", "configure b", "start a on w", "start b on w", "close a"}},
		"equal keys":   {&notes{name: "a"}, agent.ErrConfig, []string{"configure a"}},
		"nil":          {nil, agent.ErrConfig, []string{"configure a"}},
		"without key":  {keyless{}, agent.ErrConfig, []string{"configure a"}},
		"slice as key": {keyless{key: []int{1}}, agent.ErrConfig, []string{"configure a"}},
	} {
		t.Run(name, func(t *testing.T) {
			j := &journal{}
			if n, ok := c.second.(*notes); ok {
				n.journal = j
			}
			_, err := agent.Join(t.Context(), agent.Config{
				Name: "w", Store: newStore(t), Extensions: []agent.Extension{&notes{name: "a", journal: j}, c.second},
			})
			require.ErrorIs(t, err, c.want)
			require.Equal(t, c.calls, j.all())
		})
	}
}

// keyless is an extension that does nothing and whose key is no valid one.
type keyless struct {
	key any
}

func (k keyless) Key() any { return k.key }

func (k keyless) Configure(*agent.Config) error { return nil }
func (k keyless) Start(*agent.Agent) error      { return nil }
func (k keyless) Drain(context.Context) error   { return nil }
func (k keyless) Close() error                  { return nil }
func (k keyless) Dump(io.Writer) error          { return nil }
func (k keyless) Metrics() map[string]int64     { return nil }

// TestDrainCallsWorkers checks that in a static group extensions can call each other while they
// drain, that the error of one is that of its Shutdown only, and that its agent is closed.
func TestDrainCallsWorkers(t *testing.T) {
	why := errors.New("a leak")
	j := &journal{}
	configure := func(rank int, c *agent.Config) {
		n := &notes{name: "a", journal: &journal{}}
		n.drain = func(ctx context.Context, a *agent.Agent) error {
			for i := range 3 {
				if _, err := n.echo().Call(ctx, a, agent.Rank(i), 1, agent.WithBackground()); err != nil {
					return err
				}
			}
			j.add("drained")
			if rank == 1 {
				return why
			}
			return nil
		}
		c.Extensions = []agent.Extension{n}
	}
	simulate(t, 3, configure, func(t *testing.T, group []*agent.Agent) {
		errs := make([]error, 3)
		var wg sync.WaitGroup
		for i, a := range group {
			wg.Go(func() { errs[i] = a.Shutdown(t.Context()) })
		}
		wg.Wait()
		require.NoError(t, errs[0])
		require.ErrorIs(t, errs[1], why)
		require.NoError(t, errs[2])
		require.Len(t, j.all(), 3)
		require.ErrorIs(t, group[1].Barrier(t.Context()), agent.ErrClosed)
	})
}

// TestBackgroundCalls checks that Shutdown waits neither for a call in the background nor for its
// handler, in both kinds of groups, and that both end when the agents are closed.
func TestBackgroundCalls(t *testing.T) {
	for _, world := range []int{0, 2} {
		t.Run(fmt.Sprint("world of ", world), func(t *testing.T) {
			h := &hanging{}
			configure := func(rank int, c *agent.Config) {
				h.serve(rank, c)
				c.WorldSize = world
			}
			simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
				background := []agent.CallOption{agent.WithBackground(), agent.WithTimeout(0)}
				f := hang.Go(t.Context(), group[0], "worker1", agent.None{}, background...)
				direct := make(chan error, 1)
				go func() {
					_, err := hang.Call(t.Context(), group[0], "worker1", agent.None{}, background...)
					direct <- err
				}()
				synctest.Wait()
				begun := time.Now()
				var wg sync.WaitGroup
				for _, a := range group {
					wg.Go(func() { require.NoError(t, a.Shutdown(t.Context())) })
				}
				wg.Wait()
				require.Less(t, time.Since(begun), time.Second)
				_, err := f.Wait(t.Context())
				require.Error(t, err)
				require.Error(t, <-direct)
				require.Error(t, (<-h.ended).cause)
				require.Error(t, (<-h.ended).cause)
			})
		})
	}
}
