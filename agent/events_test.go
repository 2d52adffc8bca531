package agent_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/faulty"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/invariants"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// eventLog keeps the infos of all events of one agent in their order.
type eventLog struct {
	mu  sync.Mutex
	all []any
}

func (l *eventLog) events() *agent.Events {
	return &agent.Events{
		CallStarted: func(i agent.CallStartedInfo) { l.add(i) }, CallEnded: func(i agent.CallEndedInfo) { l.add(i) },
		ServeStarted: func(i agent.ServeStartedInfo) { l.add(i) }, ServeEnded: func(i agent.ServeEndedInfo) { l.add(i) },
		PeerConnected: func(i agent.PeerConnectedInfo) { l.add(i) }, PeerLost: func(i agent.PeerLostInfo) { l.add(i) },
		WorkerJoined: func(i agent.WorkerJoinedInfo) { l.add(i) }, WorkerLeft: func(i agent.WorkerLeftInfo) { l.add(i) },
		Closed: func(i agent.ClosedInfo) { l.add(i) },
	}
}

func (l *eventLog) add(info any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, info)
}

// take returns the infos of the events so far, in their order, and clears the log.
func (l *eventLog) take() []any {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.all
	l.all = nil
	return all
}

// takeEvents returns the infos of type T in the log, in their order, and clears the log; other
// events are lost.
func takeEvents[T any](l *eventLog) (of []T) {
	for _, info := range l.take() {
		if i, ok := info.(T); ok {
			of = append(of, i)
		}
	}
	return of
}

var (
	errOfHandler = errors.New("no")
	wait         = agent.NewFunc[time.Duration, []byte]("test.wait")
	refuse       = agent.NewFunc[agent.None, agent.None]("test.refuse")
)

// serveEvents returns a configure function for startGroup. It makes each worker serve the functions
// wait and refuse with one handler slot, and adds the events of the worker with rank i to logs[i].
func serveEvents(logs []*eventLog) func(rank int, c *agent.Config) {
	return func(rank int, c *agent.Config) {
		c.MaxHandlers, c.Events = 1, logs[rank].events()
		c.Funcs = agent.Funcs{
			wait.Serve(func(ctx context.Context, d time.Duration) ([]byte, error) {
				select {
				case <-time.NewTimer(d).C:
					return make([]byte, 100), nil
				case <-ctx.Done():
					return nil, context.Cause(ctx)
				}
			}),
			refuse.Serve(func(context.Context, agent.None) (agent.None, error) { return agent.None{}, errOfHandler }, agent.WithOnce()),
		}
	}
}

// For every way in which a call can end, CallStarted and CallEnded are each called once, with the
// same CallID and start. CallEnded has the duration, the sizes and the error of the call.
func TestCallEvents(t *testing.T) {
	logs := []*eventLog{{}, {}}
	simulate(t, 2, serveEvents(logs), func(t *testing.T, group []*agent.Agent) {
		a := group[0]
		ended, end := context.WithCancel(t.Context())
		end()
		enough := errors.New("enough")
		for _, c := range []struct {
			name, peer, function string
			call                 func(ctx context.Context) error
			duration             time.Duration
			sent, answered       bool
			err                  error
		}{
			{"result", "worker1", "test.wait", func(ctx context.Context) error {
				_, err := wait.Call(ctx, a, "worker1", time.Second)
				return err
			}, time.Second, true, true, nil},
			{"result of a future", "worker1", "test.wait", func(ctx context.Context) error {
				_, err := wait.Go(ctx, a, agent.Rank(1), time.Second).Wait(ctx)
				return err
			}, time.Second, true, true, nil},
			{"result of this worker", "worker0", "test.wait", func(ctx context.Context) error {
				_, err := wait.Call(ctx, a, "worker0", time.Second)
				return err
			}, time.Second, true, true, nil},
			{"failure", "worker1", "test.refuse", func(ctx context.Context) error {
				_, err := refuse.Call(ctx, a, "worker1", agent.None{})
				return err
			}, 0, true, true, &agent.RemoteError{}},
			{"no function", "worker1", "test.none", func(ctx context.Context) error {
				_, err := a.Invoke(ctx, "worker1", "test.none")
				return err
			}, 0, true, true, agent.ErrNoFunction},
			{"arguments", "worker1", "test.wait", func(ctx context.Context) error {
				_, err := a.InvokeAsync(ctx, "worker1", "test.wait", make(chan int)).Wait(ctx)
				return err
			}, 0, false, false, agent.ErrArguments},
			{"no worker", "worker7", "test.wait", func(ctx context.Context) error {
				_, err := wait.Call(ctx, a, "worker7", 0)
				return err
			}, 0, false, false, agent.ErrNoWorker},
			{"context that has ended", "worker1", "test.wait", func(context.Context) error {
				_, err := wait.Call(ended, a, "worker1", 0)
				return err
			}, 0, false, false, context.Canceled},
			{"timeout", "worker1", "test.wait", func(ctx context.Context) error {
				_, err := wait.Call(ctx, a, "worker1", time.Hour, agent.WithTimeout(time.Second))
				return err
			}, time.Second, true, false, agent.ErrTimeout},
			{"timeout of a future", "worker1", "test.wait", func(ctx context.Context) error {
				_, err := wait.Go(ctx, a, "worker1", time.Hour, agent.WithTimeout(time.Second)).Wait(ctx)
				return err
			}, time.Second, true, false, agent.ErrTimeout},
			{"cancelled context", "worker1", "test.wait", func(ctx context.Context) error {
				ctx, cancel := context.WithCancelCause(ctx)
				time.AfterFunc(time.Second, func() { cancel(enough) })
				_, err := wait.Call(ctx, a, "worker1", time.Hour)
				return err
			}, time.Second, true, false, enough},
			{"cancelled future", "worker1", "test.wait", func(ctx context.Context) error {
				f := wait.Go(ctx, a, "worker1", time.Hour)
				sleep(time.Second)
				f.Cancel(enough)
				_, err := f.Wait(ctx)
				return err
			}, time.Second, true, false, enough},
		} {
			begun := time.Now()
			err := c.call(t.Context())
			synctest.Wait()
			var calls []any
			for _, info := range logs[0].take() {
				switch info.(type) {
				case agent.CallStartedInfo, agent.CallEndedInfo:
					calls = append(calls, info)
				}
			}
			require.Len(t, calls, 2, c.name)
			first, last := calls[0].(agent.CallStartedInfo), calls[1].(agent.CallEndedInfo)
			require.Equal(t, first.Call, last.Call, c.name)
			require.NotZero(t, first.Call.Number, c.name)
			require.Equal(t, []string{c.peer, c.function}, []string{first.Call.Peer, first.Call.Name}, c.name)
			require.Equal(t, []time.Time{begun, begun}, []time.Time{first.Start, last.Start}, c.name)
			require.Equal(t, c.duration, last.Duration, c.name)
			require.Equal(t, c.sent, last.RequestBytes > 0, c.name)
			if c.err != agent.ErrTimeout { // the handler has the same deadline, and its reply may come first
				require.Equal(t, c.answered, last.ReplyBytes > 0, c.name)
			}
			if c.err == nil {
				require.NoError(t, err, c.name)
				require.NoError(t, last.Err, c.name)
				require.Greater(t, last.ReplyBytes, 100, c.name)
				continue
			}
			if c.name != "cancelled future" { // whose own error has the cause
				require.Same(t, err, last.Err, c.name)
			}
			if remote := (*agent.RemoteError)(nil); errors.As(c.err, &remote) {
				require.ErrorAs(t, last.Err, &remote, c.name)
			} else {
				require.ErrorIs(t, last.Err, c.err, c.name)
			}
		}
	})
}

// If an interceptor of the caller panics or ends the goroutine, CallEnded is called once with the
// panic, or with the end of the goroutine, as the error. A panic reaches the caller with its value.
// The call is not active any more: the workers can shut down.
func TestCallEventsOfPanics(t *testing.T) {
	for name, c := range map[string]struct {
		kind   agent.Kind
		future bool
		end    func()
		want   string
	}{
		"panic, request":              {agent.KindRequest, false, func() { panic(errOfHandler) }, "no"},
		"panic, request of a future":  {agent.KindRequest, true, func() { panic(errOfHandler) }, "no"},
		"panic, reply":                {agent.KindReply, false, func() { panic(errOfHandler) }, "no"},
		"goexit, request":             {agent.KindRequest, false, runtime.Goexit, ""},
		"goexit, request of a future": {agent.KindRequest, true, runtime.Goexit, ""},
		"goexit, reply":               {agent.KindReply, false, runtime.Goexit, ""},
	} {
		t.Run(name, func(t *testing.T) {
			logs := []*eventLog{{}, {}}
			configure := func(rank int, config *agent.Config) {
				serveEvents(logs)(rank, config)
				intercept := func(_ context.Context, m *agent.Message) error {
					if m.Kind == c.kind && m.Name == wait.Name() {
						c.end()
					}
					return nil
				}
				if rank == 0 {
					config.Interceptors = []agent.Interceptor{{Encoded: intercept, Decoded: intercept}}
				}
			}
			simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
				recovered := make(chan any)
				go func() {
					defer func() { recovered <- recover() }()
					if c.future {
						wait.Go(t.Context(), group[0], "worker1", 0)
						return
					}
					_, _ = wait.Call(t.Context(), group[0], "worker1", 0)
				}()
				v := <-recovered
				ended := takeEvents[agent.CallEndedInfo](logs[0])
				require.Len(t, ended, 1)
				for _, err := range each(t, group, func(a *agent.Agent) error { return a.Shutdown(t.Context()) }) {
					require.NoError(t, err)
				}
				if c.want == "" {
					require.Nil(t, v)
					require.NotErrorIs(t, ended[0].Err, agent.ErrPanic)
					require.ErrorContains(t, ended[0].Err, "goroutine of the caller has ended")
					return
				}
				require.Equal(t, errOfHandler, v)
				var p *agent.PanicError
				require.ErrorAs(t, ended[0].Err, &p)
				require.Equal(t, c.want, p.Value)
				require.Contains(t, p.Stack, "TestCallEventsOfPanics", "the stack of the panic")
			})
		})
	}
}

// CallEnded is called before the future of the call is done.
func TestCallEndedBeforeFuture(t *testing.T) {
	logs := []*eventLog{{}, {}}
	simulate(t, 2, serveEvents(logs), func(t *testing.T, group []*agent.Agent) {
		before := make(chan int, 1)
		f := wait.Go(t.Context(), group[0], "worker1", time.Second)
		require.NoError(t, f.OnDone(func(*agent.Future[[]byte]) { before <- len(takeEvents[agent.CallEndedInfo](logs[0])) }))
		require.Equal(t, 1, <-before)
	})
}

// CallEnded is called for each attempt of a call WithRetry, with the error of that attempt.
func TestCallEventsOfRetries(t *testing.T) {
	faults, err := faulty.New(faulty.Options{Rules: []faulty.Rule{{Func: "test.wait", First: 2, Do: faulty.Drop()}}})
	require.NoError(t, err)
	logs := []*eventLog{{}, {}}
	configure := func(rank int, c *agent.Config) { serveEvents(logs)(rank, c); c.FaultHook = faults.Inject }
	simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
		_, err := wait.Call(t.Context(), group[0], "worker1", 0, agent.WithTimeout(time.Second), agent.WithRetry(agent.Retry{}))
		require.NoError(t, err)
		var numbers []uint64
		var errs []error
		for _, e := range takeEvents[agent.CallEndedInfo](logs[0]) {
			numbers, errs = append(numbers, e.Call.Number), append(errs, e.Err)
		}
		require.Equal(t, []uint64{1, 2, 3}, numbers)
		require.ErrorIs(t, errs[0], agent.ErrTimeout)
		require.ErrorIs(t, errs[1], agent.ErrTimeout)
		require.NoError(t, errs[2])
	})
}

// ServeStarted and ServeEnded are each called once for each request. ServeEnded has the time that
// the request waited for a slot, its duration and its error.
func TestServeEvents(t *testing.T) {
	logs := []*eventLog{{}, {}}
	simulate(t, 2, serveEvents(logs), func(t *testing.T, group []*agent.Agent) {
		// The second request waits for the slot of the first one. Neither the third nor the fourth
		// needs one.
		first := wait.Go(t.Context(), group[0], "worker1", time.Second)
		synctest.Wait()
		second := wait.Go(t.Context(), group[0], "worker1", 2*time.Second)
		_, err := group[0].Invoke(t.Context(), "worker1", "test.none")
		require.ErrorIs(t, err, agent.ErrNoFunction)
		_, err = first.Wait(t.Context())
		require.NoError(t, err)
		_, err = second.Wait(t.Context())
		require.NoError(t, err)
		synctest.Wait()
		started := map[uint64]agent.ServeStartedInfo{}
		var ended []agent.ServeEndedInfo
		for _, info := range logs[1].take() {
			switch i := info.(type) {
			case agent.ServeStartedInfo:
				require.NotContains(t, started, i.Call.Number)
				require.Equal(t, "worker0", i.Call.Peer)
				started[i.Call.Number] = i
			case agent.ServeEndedInfo:
				s := started[i.Call.Number]
				require.Equal(t, s, agent.ServeStartedInfo{Call: i.Call, RequestBytes: i.RequestBytes, Start: i.Start})
				require.NotZero(t, i.ReplyBytes)
				ended = append(ended, i)
			}
		}
		require.Len(t, started, 3)
		require.Len(t, ended, 3)
		require.Equal(t, "test.none", ended[0].Call.Name)
		require.ErrorIs(t, ended[0].Err, agent.ErrNoFunction)
		for i, want := range []struct{ queued, duration time.Duration }{{0, time.Second}, {time.Second, 3 * time.Second}} {
			require.NoError(t, ended[i+1].Err)
			require.Equal(t, want.queued, ended[i+1].Queued)
			require.Equal(t, want.duration, ended[i+1].Duration)
			require.Greater(t, ended[i+1].ReplyBytes, 100)
		}
	})
}

// ServeEnded has the error with which a request failed. For a repeated request that gets the kept
// failure, the error is ErrRepeated.
func TestServeEventsOfFailures(t *testing.T) {
	logs := []*eventLog{{}, {}}
	simulate(t, 2, serveEvents(logs), func(t *testing.T, group []*agent.Agent) {
		for _, want := range []error{errOfHandler, agent.ErrRepeated} {
			_, err := refuse.Call(t.Context(), group[0], "worker1", agent.None{}, agent.WithIdempotencyKey("7"))
			require.ErrorContains(t, err, "no")
			synctest.Wait()
			ended := takeEvents[agent.ServeEndedInfo](logs[1])
			require.Len(t, ended, 1)
			require.Equal(t, want, ended[0].Err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err := wait.Call(ctx, group[0], "worker1", time.Hour)
		require.ErrorIs(t, err, context.Canceled)
		synctest.Wait()
		ended := takeEvents[agent.ServeEndedInfo](logs[1])
		require.Len(t, ended, 1)
		require.ErrorIs(t, ended[0].Err, agent.ErrCallerGone)
		require.Equal(t, time.Second, ended[0].Duration)
	})
}

// PeerConnected comes before the events of the calls on a pipe, and PeerLost before the end of
// calls that the loss of the pipe ends. Closed is the last event of an agent, except for the end of
// a handler that runs on.
func TestPeerEvents(t *testing.T) {
	logs := []*eventLog{{}, {}}
	var proceed chan struct{}
	stubborn := agent.NewFunc[agent.None, agent.None]("test.stubborn")
	configure := func(rank int, c *agent.Config) {
		if rank == 0 {
			proceed = make(chan struct{}) // in the bubble
		}
		c.Events = logs[rank].events()
		c.Funcs = agent.Funcs{stubborn.Serve(func(context.Context, agent.None) (agent.None, error) {
			<-proceed
			return agent.None{}, nil
		})}
	}
	simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
		f := stubborn.Go(t.Context(), group[0], "worker1", agent.None{})
		synctest.Wait()
		require.NoError(t, group[1].Close())
		_, err := f.Wait(t.Context())
		require.ErrorIs(t, err, agent.ErrUnreachable)
		require.NoError(t, group[0].Close())
		require.NoError(t, group[0].Close())
		close(proceed)
		synctest.Wait()
		for rank, want := range [][]string{
			{"WorkerJoined", "CallStarted", "PeerConnected", "PeerLost", "CallEnded", "Closed"},
			{"WorkerJoined", "PeerConnected", "ServeStarted", "PeerLost", "Closed", "ServeEnded"},
		} {
			var names []string
			for _, info := range logs[rank].take() {
				names = append(names, eventName(info))
				switch i := info.(type) {
				case agent.PeerConnectedInfo:
					require.Equal(t, group[1-rank].Self(), i.Worker)
					require.NotEmpty(t, i.Address)
					require.Equal(t, "mem", i.Plan.Transport)
				case agent.PeerLostInfo:
					require.Equal(t, group[1-rank].Self(), i.Worker)
					require.ErrorIs(t, i.Err, []error{agent.ErrUnreachable, agent.ErrClosed}[rank])
					require.Equal(t, rank == 0, errors.Is(i.Err, pipe.ErrPeerClosed))
				case agent.ServeEndedInfo:
					require.ErrorIs(t, i.Err, pipe.ErrClosed, "the reply is lost")
				case agent.ClosedInfo:
					require.NoError(t, i.Err)
				}
			}
			require.Equal(t, want, names)
		}
	})
}

// eventName returns the name of the field of Events whose function takes info, such as "CallEnded"
// for a CallEndedInfo.
func eventName(info any) string {
	return strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf("%T", info), "agent."), "Info")
}

// If a worker closes with calls in progress, it reports PeerLost, CallEnded with the error of the
// call, and then Closed. Calls after Close are reported, too.
func TestEventsOfClose(t *testing.T) {
	logs := []*eventLog{{}, {}}
	simulate(t, 2, serveEvents(logs), func(t *testing.T, group []*agent.Agent) {
		f := wait.Go(t.Context(), group[0], "worker1", time.Hour)
		synctest.Wait()
		logs[0].take()
		require.NoError(t, group[0].Close())
		_, err := f.Wait(t.Context())
		require.ErrorIs(t, err, agent.ErrClosed)
		all := logs[0].take()
		require.Len(t, all, 3)
		require.ErrorIs(t, all[0].(agent.PeerLostInfo).Err, agent.ErrClosed)
		require.Same(t, err, all[1].(agent.CallEndedInfo).Err)
		require.Equal(t, agent.ClosedInfo{}, all[2])
		_, err = wait.Call(t.Context(), group[0], "worker1", 0)
		require.ErrorIs(t, err, agent.ErrClosed)
		require.Len(t, takeEvents[agent.CallEndedInfo](logs[0]), 1, "calls after Close are reported")
	})
}

// In a dynamic group WorkerJoined and WorkerLeft are reported when a worker or a client joins, is
// replaced or leaves.
func TestMemberEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.NewMemory(store.Limits{})
		defer func() { require.NoError(t, s.Close()) }()
		network, log := mem.NewNetwork(), &eventLog{}
		join := func(rank int, configure func(c *agent.Config)) *agent.Agent {
			c := agent.Config{Name: fmt.Sprintf("worker%d", rank), Rank: rank, Store: s, Logger: slog.New(slog.DiscardHandler)}
			inMemory(&c, network)
			configure(&c)
			a, err := agent.Join(t.Context(), c)
			require.NoError(t, err)
			synctest.Wait()
			return a
		}
		nothing := func(*agent.Config) {}
		one := join(1, nothing)
		watcher := join(0, func(c *agent.Config) { c.Events = log.events() })
		require.Equal(t, []any{agent.WorkerJoinedInfo{Worker: one.Self()}}, log.take())
		two := join(2, func(c *agent.Config) { c.Client = true })
		sleep(time.Minute) // changes are polled
		synctest.Wait()
		require.Equal(t, []any{agent.WorkerJoinedInfo{Worker: two.Self(), Client: true}}, log.take())
		again := join(1, func(c *agent.Config) { c.Replace = true })
		sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, []any{agent.WorkerLeftInfo{Worker: one.Self()}, agent.WorkerJoinedInfo{Worker: one.Self()}}, log.take())
		require.NoError(t, two.Shutdown(t.Context()))
		sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, []any{agent.WorkerLeftInfo{Worker: two.Self(), Client: true}}, log.take())
		for _, a := range []*agent.Agent{one, again, watcher} {
			require.NoError(t, a.Close())
		}
	})
}

// A Join that fails calls Events.Closed, and no other event.
func TestEventsOfFailedJoin(t *testing.T) {
	log := &eventLog{}
	_, err := agent.Join(t.Context(), agent.Config{Name: "worker0", WorldSize: 1, Rendezvous: "nothing://", Events: log.events()})
	require.Error(t, err)
	require.Equal(t, []any{agent.ClosedInfo{}}, log.take())
}

// In the source of the package, each function of Events is called only within an if statement that
// compares that function with nil, and the clock is read for events only there.
// TestEventsAllocateNothingIfNil covers allocations.
func TestEventsCostNothingIfNil(t *testing.T) {
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	called := map[string]bool{}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, f.Name(), nil, 0)
		require.NoError(t, err)
		var guards []string // the functions that the enclosing if statements compare with nil
		var visit func(n ast.Node) bool
		visit = func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.IfStmt:
				before := len(guards)
				ast.Inspect(n.Cond, func(n ast.Node) bool {
					if b, ok := n.(*ast.BinaryExpr); ok && b.Op == token.NEQ {
						guards = append(guards, eventFunction(b.X))
					}
					return true
				})
				ast.Inspect(n.Body, visit)
				guards = guards[:before]
				if n.Else != nil {
					ast.Inspect(n.Else, visit)
				}
				return false
			case *ast.CallExpr:
				if name := eventFunction(n.Fun); name != "" {
					require.Contains(t, guards, name, fset.Position(n.Pos()))
					called[name] = true
				}
				if s, ok := n.Fun.(*ast.SelectorExpr); ok && f.Name() == "events.go" && (s.Sel.Name == "Now" || s.Sel.Name == "Since") {
					require.NotEmpty(t, guards, "%v reads the clock", fset.Position(n.Pos()))
				}
			}
			return true
		}
		ast.Inspect(file, visit)
	}
	require.Len(t, called, 9, "all events")
}

// Of the functions of Events for calls and requests, only ServeEnded costs an allocation, and only
// at the worker where it is set. Without any of them a call makes at most as many allocations as
// TestSmallCallAllocates allows.
func TestEventsAllocateNothingIfNil(t *testing.T) {
	if race.Enabled || invariants.Enabled {
		t.Skip("the race detector and the invariants allocate themselves")
	}
	for _, c := range []struct {
		name   string
		events agent.Events
		most   float64
	}{
		{"none", agent.Events{}, 8},
		{"CallStarted", agent.Events{CallStarted: func(agent.CallStartedInfo) {}}, 8},
		{"CallEnded", agent.Events{CallEnded: func(agent.CallEndedInfo) {}}, 8},
		{"ServeStarted", agent.Events{ServeStarted: func(agent.ServeStartedInfo) {}}, 8},
		{"ServeEnded", agent.Events{ServeEnded: func(agent.ServeEndedInfo) {}}, 9},
	} {
		group := startGroup(t, 2, func(_ int, config *agent.Config) {
			config.Events = &c.events
			config.Funcs = agent.Funcs{add.Serve(addTensors, agent.WithShort())}
		})
		args := pair{filled(t, 1, 2, 2), filled(t, 2, 2, 2)}
		allocations := testing.AllocsPerRun(2000, func() {
			_, err := add.Call(t.Context(), group[0], "worker1", args)
			require.NoError(t, err)
		})
		t.Logf("%s: %.0f allocations for a call", c.name, allocations)
		require.LessOrEqual(t, allocations, c.most, c.name)
	}
}

// eventFunction returns the name of the function if e is a selector on the field events of an
// agent, such as a.events.Closed, and "" otherwise.
func eventFunction(e ast.Expr) string {
	f, ok := e.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if s, ok := f.X.(*ast.SelectorExpr); ok && s.Sel.Name == "events" {
		return f.Sel.Name
	}
	return ""
}
