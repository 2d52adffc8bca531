package agent_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// inspected returns a Config with which Inspect asks the group on s that has the token secret.
func inspected(s store.Store) agent.Config {
	return agent.Config{Store: s, Token: []byte("secret"), Logger: slog.New(slog.DiscardHandler)}
}

// Inspect returns the calls in progress, the bytes and the pipes of each worker of a static and of a
// dynamic group, also the bytes of pipes that have ended, and changes nothing: no member learns of
// another one.
func TestInspect(t *testing.T) {
	for _, static := range []bool{false, true} {
		t.Run(fmt.Sprint("static=", static), func(t *testing.T) {
			g := newGate()
			var s store.Store
			group := startGroup(t, 3, func(_ int, c *agent.Config) {
				s, c.Token = c.Store, []byte("secret")
				c.Listen = []string{"uv://127.0.0.1:0"}
				c.Funcs = agent.Funcs{blocked.Serve(g.serve)}
				if !static {
					c.WorldSize = 0
				}
			})
			call := blocked.Go(t.Context(), group[0], "worker2", filled(t, 1, 1<<10), agent.WithTimeout(0))
			testwait.Finish(t, g.begun)
			all, err := agent.Inspect(t.Context(), inspected(s))
			require.NoError(t, err)
			require.Len(t, all, 3)
			for rank, w := range all {
				require.NoError(t, w.Err)
				require.Equal(t, group[rank].Self(), w.Worker)
				require.False(t, w.Client)
				require.Len(t, w.URLs, 1)
				require.Len(t, w.Incarnation.String(), 32)
			}
			require.Equal(t, []int{1, 0, 0, 1}, []int{all[0].Calls, all[0].Serving, all[2].Calls, all[2].Serving})
			require.Equal(t, []uint64{4096, 0, 0, 4096}, []uint64{all[0].Sent, all[0].Received, all[2].Sent, all[2].Received})
			require.Zero(t, all[1].Calls+all[1].Serving+int(all[1].Sent+all[1].Received)+len(all[1].Pipes))
			for i, rank := range []int{0, 2} {
				require.Len(t, all[rank].Pipes, 1)
				p := all[rank].Pipes[0]
				require.Equal(t, group[2-rank].Self(), p.Worker)
				require.NotEmpty(t, p.Address)
				require.Regexp(t, `^uv\+\w+$`, p.Path)
				require.Equal(t, []int{1 - i, i}, []int{p.Calls, p.Serving})
				require.Equal(t, []uint64{all[rank].Sent, all[rank].Received}, []uint64{p.Sent, p.Received})
			}
			close(g.proceed)
			_, err = call.Wait(t.Context())
			require.NoError(t, err)
			require.Len(t, group[1].WorkerInfos(), 3)

			require.NoError(t, group[2].Close())
			require.Eventually(t, func() bool { return group[0].Metrics().Pipes == 0 }, 20*time.Second, time.Millisecond)
			all, err = agent.Inspect(t.Context(), inspected(s))
			require.NoError(t, err)
			require.Len(t, all, 2, "without the worker that has left")
			require.Equal(t, uint64(4096), all[0].Sent)
			require.Empty(t, all[0].Pipes)
		})
	}
}

// Inspect without the token of the group has the rejection of each worker as the reason. It fails if
// there is no such group, if the configuration is invalid or if its context ends.
// Inspect listens nowhere, so it needs no address of this machine: a store at a wildcard is that of
// this machine.
func TestInspectAtAWildcard(t *testing.T) {
	url := "tcp://0.0.0.0:" + freeport.Port(t, "0.0.0.0")
	c := agent.Config{
		Name: "worker0", Rendezvous: url, Listen: []string{"uv://127.0.0.1:0"}, Token: []byte("secret"),
		Logger: slog.New(slog.DiscardHandler),
	}
	a, err := agent.Join(t.Context(), c)
	require.NoError(t, err)
	all, err := agent.Inspect(t.Context(), agent.Config{Rendezvous: url, Token: c.Token, Logger: c.Logger})
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.NoError(t, all[0].Err)
	require.NoError(t, a.Close())
}

func TestInspectErrors(t *testing.T) {
	var s store.Store
	startGroup(t, 1, func(_ int, c *agent.Config) { s, c.Token = c.Store, []byte("secret") })
	c := inspected(s)
	c.Token = []byte("guess")
	all, err := agent.Inspect(t.Context(), c)
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.ErrorIs(t, all[0].Err, agent.ErrRefused)
	require.ErrorContains(t, all[0].Err, "does not know the token")

	c = inspected(s)
	c.Group = "other"
	_, err = agent.Inspect(t.Context(), c)
	require.ErrorIs(t, err, agent.ErrNoGroup)
	require.EqualError(t, err, `agent: inspect: group "other": no such group on the store, or its workers have not joined yet`)
	_, err = agent.Inspect(t.Context(), agent.Config{})
	require.ErrorIs(t, err, agent.ErrConfig)
	ended, end := context.WithCancel(t.Context())
	end()
	_, err = agent.Inspect(ended, inspected(s))
	require.ErrorIs(t, err, context.Canceled)
}

// The log of Inspect names no worker: the process does not join the group.
func TestInspectLogs(t *testing.T) {
	t.Parallel()
	lines, log := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	inspected := testwait.Start(func() error {
		_, err := agent.Inspect(ctx, agent.Config{
			Rendezvous: "tcp://" + freeport.Addr(t), Logger: slog.New(slog.NewTextHandler(log, nil)),
		})
		return err
	})
	line, err := bufio.NewReader(lines).ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, `msg="waiting for the store"`)
	require.NotContains(t, line, "worker=")
	require.NoError(t, lines.Close())
	cancel()
	require.ErrorIs(t, testwait.Finish(t, inspected), context.Canceled)
}

// numbered is an extension with those metrics.
type numbered struct {
	*notes
	metrics map[string]int64
}

func (n numbered) Metrics() map[string]int64 { return n.metrics }

// TestInspectMetrics checks that Inspect returns the numbers of the extensions, that of the first one
// for equal names, and at most 256, with names of at most 128 bytes.
func TestInspectMetrics(t *testing.T) {
	many := map[string]int64{strings.Repeat("x", 129): 1, strings.Repeat("a", 128): 2, "shared": 3}
	for i := range 300 {
		many[fmt.Sprintf("n%03d", i)] = int64(i)
	}
	var s store.Store
	startGroup(t, 2, func(rank int, c *agent.Config) {
		s, c.Token = c.Store, []byte("secret")
		if rank == 0 {
			c.Extensions = []agent.Extension{
				numbered{&notes{name: "one", journal: &journal{}}, map[string]int64{"a shared": -4, "b": 5}},
				numbered{&notes{name: "two", journal: &journal{}}, map[string]int64{"a shared": 6}},
				numbered{&notes{name: "three", journal: &journal{}}, many},
			}
		}
	})
	all, err := agent.Inspect(t.Context(), inspected(s))
	require.NoError(t, err)
	want := map[string]int64{"a shared": -4, "b": 5, strings.Repeat("a", 128): 2}
	for i := range 256 - len(want) {
		want[fmt.Sprintf("n%03d", i)] = int64(i)
	}
	require.Equal(t, want, all[0].Metrics)
	require.Empty(t, all[1].Metrics)
}
