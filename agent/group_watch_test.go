package agent_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/procgroup"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/simnet"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// sendEvents returns a function for Watch that sends "<name> <kind>" to the test for each event. For
// an event with an incarnation that the function has not seen under that name before, it appends
// "*". An event of a lost worker without a reason, or any other with one, has "!" at the end.
func sendEvents(m *procgroup.Member) func(agent.MemberEvent) {
	seen := map[agent.Incarnation]bool{}
	return func(e agent.MemberEvent) {
		line := fmt.Sprint(e.Worker.Name, " ", e.Kind)
		if !seen[e.Incarnation] {
			line += "*"
		}
		seen[e.Incarnation] = true
		if errors.Is(e.Err, agent.ErrUnreachable) != (e.Kind == agent.MemberLost) {
			line += "!"
		}
		m.Send(line)
	}
}

// serveWatch joins the worker of the process m in a static or a dynamic group. Worker 0 watches the
// group, with Watch or WatchAll, and obeys the lines of the test: "call NAME", "remove NAME", "lost"
// to send the names that Workers marks, "close". Other workers obey "close" and "shutdown".
func serveWatch(m *procgroup.Member, static, all bool) error {
	a, err := joinMember(m, func(c *agent.Config) {
		serveStuck(m)(c)
		c.Replace = m.Restarts > 0
		if !static {
			c.WorldSize = 0
		}
	})
	if err != nil {
		return err
	}
	m.Send("ready")
	if m.Rank == 0 {
		if err := m.WaitFor("watch"); err != nil {
			return err
		}
		watch := a.Watch
		if all {
			watch = a.WatchAll
		}
		watch(func(agent.MemberEvent) { m.Send("event after stop") })()
		defer watch(sendEvents(m))()
	}
	for {
		line, err := m.ReadLine()
		if err != nil {
			return err
		}
		verb, name, _ := strings.Cut(line, " ")
		switch verb {
		case "call":
			_, err = double.Call(m.Context(), a, agent.To(name), 1)
		case "remove":
			err = a.Remove(m.Context(), agent.To(name))
		case "lost":
			var infos []agent.WorkerInfo
			infos, err = a.Workers(m.Context())
			for _, w := range infos {
				if w.Lost {
					line += " " + w.Name
				}
			}
		case "shutdown":
			return a.Shutdown(m.Context())
		case "close":
			return a.Close()
		}
		if err != nil {
			return err
		}
		m.Send("done: " + line)
	}
}

// Watch and WatchAll report, in order for each member, a killed worker as lost, a restarted one with
// its new incarnation, a removed one and one that leaves in order, in static and dynamic groups. A
// watch that was stopped reports nothing. Without WatchAll a loss is known from the pipe of a call,
// and in a dynamic group the end of a worker without a pipe from the store.
func TestWatchProcesses(t *testing.T) {
	t.Parallel()
	for _, static := range []bool{false, true} {
		for _, all := range []bool{false, true} {
			t.Run(fmt.Sprintf("static=%v,all=%v", static, all), func(t *testing.T) { watchProcesses(t, static, all) })
		}
	}
}

func watchProcesses(t *testing.T, static, all bool) {
	group := procgroup.Start(t, 3, func(m *procgroup.Member) error { return serveWatch(m, static, all) })
	expect := func(lines ...string) {
		t.Helper()
		var got []string
		for range lines {
			got = append(got, group.ReadLine(0))
		}
		require.ElementsMatch(t, lines, got)
	}
	obey := func(line, want string) {
		t.Helper()
		group.Send(0, line)
		expect("done: " + want)
	}
	openPipe := func(name string) {
		t.Helper()
		if !all {
			obey("call "+name, "call "+name)
		}
	}
	waitForLines(group, 3, "ready")
	group.Send(0, "watch")
	expect("worker1 joined*", "worker2 joined*")
	openPipe("worker1")
	group.Kill(1)
	expect("worker1 lost")
	obey("lost", "lost worker1")
	if static {
		openPipe("worker2")
	} else {
		group.Restart(1)
		expect("worker1 restarted*")
		obey("lost", "lost")
		openPipe("worker1")
		group.Kill(1)
		expect("worker1 lost")
		group.Send(0, "remove worker1")
		expect("worker1 removed", "done: remove worker1")
		group.Restart(1)
		expect("worker1 joined*")
		group.Send(1, "shutdown")
		expect("worker1 left")
	}
	group.Send(2, "close")
	expect("worker2 left")
	group.Send(0, "close")
	group.Wait()
}

// A shutdown of the whole static group is reported as leaving, not as a loss.
func TestWatchShutdown(t *testing.T) {
	kinds := make([][]agent.MemberEventKind, 3)
	var mu sync.Mutex
	simulate(t, 3, nil, func(t *testing.T, group []*agent.Agent) {
		for i, a := range group {
			a.WatchAll(func(e agent.MemberEvent) {
				mu.Lock()
				defer mu.Unlock()
				kinds[i] = append(kinds[i], e.Kind)
			})
		}
		synctest.Wait()
		var wg sync.WaitGroup
		for _, a := range group {
			wg.Go(func() { require.NoError(t, a.Shutdown(t.Context())) })
		}
		wg.Wait()
		synctest.Wait()
	})
	for _, list := range kinds {
		require.GreaterOrEqual(t, len(list), 2)
		require.Equal(t, []agent.MemberEventKind{agent.MemberJoined, agent.MemberJoined}, list[:2])
		for _, kind := range list[2:] {
			require.Equal(t, agent.MemberLeft, kind)
		}
	}
}

// joinBubble returns a function that joins the worker with the given name to a dynamic group on one
// store and one network, both in memory, within a bubble of testing/synctest. The agents and the
// store are closed at the end of the test.
func joinBubble(t *testing.T) (join func(name string, configure ...func(c *agent.Config)) *agent.Agent) {
	s, network := store.NewMemory(store.Limits{}), mem.NewNetwork()
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return func(name string, configure ...func(c *agent.Config)) *agent.Agent {
		c := agent.Config{Name: name, Rank: -1, Store: s, Logger: slog.New(slog.DiscardHandler)}
		inMemory(&c, network)
		for _, f := range configure {
			f(&c)
		}
		a, err := agent.Join(t.Context(), c)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, a.Close()) })
		return a
	}
}

func client(c *agent.Config) { c.Client = true }

func replace(c *agent.Config) { c.Replace = true }

// settle waits, in virtual time, until all agents have learned of changes of the store.
func settle() {
	sleep(time.Minute)
	synctest.Wait()
}

// While a function of Watch blocks, nothing is queued: it learns nothing of a client that joins and
// leaves, and then the present states of the others. Another watch is not held up. The function may
// call methods of the agent.
func TestWatchSlowFunction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		join := joinBubble(t)
		a := join("a")
		join("b")
		proceed := make(chan struct{})
		slow, quick := make(chan string, 64), make(chan string, 64)
		a.Watch(func(e agent.MemberEvent) {
			slow <- fmt.Sprint(e, len(a.WorkerInfos()))
			<-proceed
		})
		a.Watch(func(e agent.MemberEvent) { quick <- fmt.Sprint(e, " client=", e.Client) })
		settle()
		passing := join("c", client)
		settle()
		require.NoError(t, passing.Close())
		settle()
		join("b", replace)
		settle()
		again := join("b", replace)
		settle()
		join("d")
		settle()
		require.NoError(t, again.Close())
		settle()
		close(proceed)
		settle()
		require.Equal(t, []string{"b joined 2", "b restarted 2", "b left 2", "d joined 2"}, buffered(slow))
		require.Equal(t, []string{
			"b joined client=false", "c joined client=true", "c left client=true", "b restarted client=false",
			"b restarted client=false", "d joined client=false", "b left client=false",
		}, buffered(quick))
	})
}

// buffered returns the values in the buffer of ch.
func buffered[T any](ch <-chan T) (all []T) {
	for len(ch) > 0 {
		all = append(all, <-ch)
	}
	return all
}

// The function may stop its watch, or close the agent: there are no calls after that. After Close
// Watch reports nothing. A worker that was replaced learns of that from its watch.
func TestWatchEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		join := joinBubble(t)
		a, b := join("a"), join("b")
		join("c")
		stopped, closed, replaced := 0, 0, make(chan agent.MemberEvent, 8)
		var stop func()
		ready := make(chan struct{})
		stop = a.Watch(func(agent.MemberEvent) {
			<-ready
			stopped++
			stop()
			stop()
		})
		close(ready)
		b.Watch(func(e agent.MemberEvent) { replaced <- e })
		settle()
		require.Equal(t, 1, stopped)
		again := join("b", replace)
		settle()
		events := buffered(replaced)
		require.Len(t, events, 3)
		require.Equal(t, agent.MemberRestarted, events[2].Kind)
		require.Equal(t, b.Self(), events[2].Worker)

		again.Watch(func(agent.MemberEvent) {
			closed++
			_ = again.Close()
		})
		settle()
		require.Equal(t, 1, closed)
		again.WatchAll(func(agent.MemberEvent) { closed++ })()
		settle()
		require.Equal(t, 1, closed)
	})
}

// If the link to a living worker is cut, the worker is lost, and WorkerInfos marks it, until a call
// or WatchAll has opened another pipe.
func TestWatchReconnects(t *testing.T) {
	t.Parallel()
	for _, all := range []bool{false, true} {
		t.Run(fmt.Sprint("all=", all), func(t *testing.T) {
			network := simnet.New(uv.New())
			group := startGroup(t, 2, func(rank int, c *agent.Config) { serveDouble(rank, c); overLinks(c, network) })
			_, err := double.Call(t.Context(), group[0], "worker1", 1)
			require.NoError(t, err)
			watch, events := group[0].Watch, make(chan agent.MemberEvent)
			if all {
				watch = group[0].WatchAll
			}
			defer watch(func(e agent.MemberEvent) { events <- e })()
			next := func(kind agent.MemberEventKind, cause error) {
				t.Helper()
				e := testwait.Finish(t, events)
				require.Equal(t, kind, e.Kind)
				require.ErrorIs(t, e.Err, cause)
				require.Equal(t, kind == agent.MemberLost, e.Worker.Lost)
				require.Equal(t, e.Worker, group[0].WorkerInfos()[1])
				info, err := group[0].Worker(t.Context(), "worker1")
				require.NoError(t, err)
				require.Equal(t, e.Worker, info)
			}
			next(agent.MemberJoined, nil)
			for _, l := range network.Links() {
				l.Cut()
			}
			next(agent.MemberLost, agent.ErrUnreachable)
			if !all {
				for err = agent.ErrUnreachable; errors.Is(err, agent.ErrUnreachable); { // as in TestCutLink
					_, err = double.Call(t.Context(), group[0], "worker1", 1)
				}
				require.NoError(t, err)
			}
			next(agent.MemberReconnected, nil)
		})
	}
}

// A worker that was removed although it lives learns of the loss of its pipes and of its removal.
func TestWatchOwnRemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.NewMemory(store.Limits{})
		defer s.Close()
		join := func(name string) *agent.Agent {
			c := agent.Config{Name: name, Rank: -1, Store: s, Logger: slog.New(slog.DiscardHandler)}
			inMemory(&c, mem.NewNetwork()) // the workers do not reach each other
			a, err := agent.Join(t.Context(), c)
			require.NoError(t, err)
			return a
		}
		a, cut := join("a"), join("cut")
		defer cut.Close()
		defer a.Close()
		var events []agent.MemberEvent
		cut.WatchAll(func(e agent.MemberEvent) { events = append(events, e) })
		settle()
		require.NoError(t, a.Remove(t.Context(), "cut"))
		settle()
		var texts []string
		for _, e := range events {
			texts = append(texts, e.Worker.Name+" "+e.Kind.String())
		}
		require.Equal(t, []string{"a joined", "a lost", "cut removed"}, texts)
		require.ErrorIs(t, events[1].Err, agent.ErrUnreachable)
	})
}
