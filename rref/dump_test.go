package rref_test

import (
	"bytes"
	"context"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/rref"
)

var renewed = regexp.MustCompile(`renewed \S+ ago`)

// dump returns what the references of the worker with that rank write, without the times of leases,
// which depend on the interval of ticks. Agent.Dump must contain it.
func (g *group) dump(rank int) string {
	g.t.Helper()
	var b, all bytes.Buffer
	require.NoError(g.t, g.refs[rank].Dump(&b))
	require.NoError(g.t, g.agents[rank].Dump(&all))
	require.Contains(g.t, all.String(), b.String())
	return renewed.ReplaceAllString(b.String(), "renewed")
}

// text returns lines without the first line end and the indentation that they share.
func text(lines string) string {
	return strings.TrimPrefix(strings.ReplaceAll(lines, "\n\t\t\t", "\n"), "\n")
}

// TestDump checks the text about the values, references and leases of three workers.
func TestDump(t *testing.T) {
	inTime(t, 3, func(t *testing.T, g *group, _ *traffic) {
		f := rref.Remote(t.Context(), g.agents[0], "worker1", double, 21)
		c := rref.Remote(t.Context(), g.agents[0], "worker1", newCounter, 1)
		own := rref.Own(g.agents[0], "text")
		bad := rref.Remote(t.Context(), g.agents[0], "worker2", agent.NewFunc[int, int]("test.unknown"), 1)
		for range 2 {
			_, err := hold.Call(t.Context(), g.agents[0], "worker2", holdArgs{map[string][]*rref.Ref[int]{"a": {f}}})
			require.NoError(t, err)
		}
		_, err := c.Created().Wait(t.Context())
		require.NoError(t, err)
		sleep(2 * time.Second)
		require.Equal(t, text(`
			values: 1
			  0.4: string, 2s, 1 here
			references: 3
			  0.1 to value 0.0 on worker1: confirmed, 2s
			  0.3 to value 0.2 on worker1: confirmed, 2s
			  0.6 to value 0.5 on worker2: failed, 2s, agent: call rref.create.func:test.unknown on worker2: not served: no function of that name
			leases of users: 0
			leases at owners: 2
			  worker1: epoch 1, renewed, 2 references
			  worker2: not granted, 1 reference
			sent and not accepted: 0
			requests that wait for a reference: 0
			`), g.dump(0))
		require.Equal(t, text(`
			values: 2
			  0.0: int, 2s, 1 of worker0, 2 of worker2
			  0.2: *rref_test.counter, 2s, 1 of worker0
			references: 0
			leases of users: 2
			  worker0: epoch 1, renewed, 2 references
			  worker2: epoch 2, renewed, 2 references
			leases at owners: 0
			sent and not accepted: 0
			requests that wait for a reference: 0
			`), g.dump(1))
		for _, release := range []func(context.Context) error{f.Release, c.Release, own.Release, bad.Release} {
			require.NoError(t, release(t.Context()))
		}
		releaseHeld(t)
		synctest.Wait()
	})
}

// TestDumpOfLostMessages checks the text about a reference whose creation was lost, a reference in a
// lost reply, and an owner that does not answer.
func TestDumpOfLostMessages(t *testing.T) {
	inTime(t, 3, func(t *testing.T, g *group, tr *traffic) {
		f := rref.Remote(t.Context(), g.agents[0], "worker1", double, 21)
		_, err := f.Created().Wait(t.Context())
		require.NoError(t, err)
		tr.dropIf(func(_ string, m *agent.Message) bool {
			return m.Kind == agent.KindReply && m.Name == pass.Name() || m.Type == "rref.create.func"
		})
		_, err = pass.Call(t.Context(), g.agents[0], "worker1", f, agent.WithTimeout(time.Second))
		require.ErrorIs(t, err, agent.ErrTimeout)
		lost := rref.Remote(t.Context(), g.agents[0], "worker1", double, 1, agent.WithTimeout(2*time.Second))
		go func() { _, _ = lost.ToHere(t.Context()) }()
		synctest.Wait()
		require.Contains(t, g.dump(0), text(`
			references: 2
			  0.1 to value 0.0 on worker1: confirmed, 1s
			  0.4 to value 0.3 on worker1: pending, 0s
			`))
		require.Contains(t, g.dump(1), text(`
			sent and not accepted: 1
			  value 0.0 to worker0: 1
			requests that wait for a reference: 1
			  worker0: 1
			`))
		tr.dropIf(betweenTwo("worker0", "worker1"))
		sleep(lease + lease/4)
		require.Contains(t, g.dump(0), "  0.1 to value 0.0 on worker1: confirmed, 38.5s, the owner does not answer\n")
		require.Contains(t, g.dump(0), "  worker1: epoch 1, renewed, the owner does not answer, 2 references\n")
		require.Contains(t, g.dump(1), "leases of users: 0\n")
		tr.dropIf(nil)
		require.NoError(t, f.Release(t.Context()))
		require.NoError(t, lost.Release(t.Context()))
		sleep(2 * lease)
	})
}

// logs is what is logged at level Info.
type logs struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// logger returns a Logger that writes to l.
func (l *logs) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// node is a value that refers to another one.
type node struct{ next *rref.Ref[*node] }

func (n *node) Link(_ context.Context, next *rref.Ref[*node]) (agent.None, error) {
	n.next = next
	return agent.None{}, nil
}

var link = rref.NewMethod[*node, *rref.Ref[*node], agent.None]("Link")

// TestCycle checks that values which refer to each other across workers stay until Shutdown, which
// succeeds and logs the references by owner, label and type, once.
func TestCycle(t *testing.T) {
	newNode := agent.NewFunc[agent.None, *node]("test.newNode")
	log := &logs{}
	run(t, 3, func(rank int, c *agent.Config, o *rref.Options) {
		c.Logger = log.logger()
		c.Funcs = append(c.Funcs, newNode.Serve(func(context.Context, agent.None) (*node, error) { return &node{}, nil }))
		o.Methods = append(o.Methods, link.Serve((*node).Link))
	}, func(t *testing.T, g *group) {
		one := rref.Remote(t.Context(), g.agents[0], "worker1", newNode, agent.None{})
		two := rref.Remote(t.Context(), g.agents[0], "worker2", newNode, agent.None{})
		_, err := link.Call(t.Context(), one, two)
		require.NoError(t, err)
		_, err = link.Call(t.Context(), two, one)
		require.NoError(t, err)
		node, err := one.Type(t.Context())
		require.NoError(t, err)
		require.Equal(t, "*rref_test.node", node)
		require.NoError(t, two.Release(t.Context()))
	})
	text := log.String()
	for _, part := range []string{
		`worker=worker0 owner=worker1 references=1 values="0.0 (*rref_test.node): 1"`,
		`worker=worker1 owner=worker2 references=1 values="0.2: 1"`,
		`worker=worker2 owner=worker1 references=1 values="0.0: 1"`,
	} {
		require.Equal(t, 1, strings.Count(text, part), text)
	}
	require.Equal(t, 3, strings.Count(text, "references that were not released"), text)
}
