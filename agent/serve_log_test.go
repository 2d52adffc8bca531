package agent_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/loglines"
)

// The errors that handlers return are logged for debugging only, and their panics as errors.
func TestLogOfHandlerErrors(t *testing.T) {
	var log loglines.Lines
	later := agent.NewFunc[agent.None, agent.None]("test.later")
	group := startGroup(t, 2, func(rank int, c *agent.Config) {
		serveTexts(rank, c)
		c.Funcs = append(c.Funcs, later.ServeAsync(func(context.Context, agent.None) *agent.Future[agent.None] {
			return future.Failed[agent.None](errors.New("not now"))
		}))
		if rank == 1 {
			c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		}
	})
	for _, text := range []string{"out of memory", "panic"} {
		_, err := textFails.Call(t.Context(), group[0], "worker1", text)
		require.Error(t, err)
	}
	_, err := later.Call(t.Context(), group[0], "worker1", agent.None{})
	require.ErrorContains(t, err, "not now")
	_, err = collect(textCounts.Call(t.Context(), group[0], "worker1", 1))
	require.ErrorContains(t, err, "no more")
	_, err = group[0].Invoke(t.Context(), "worker1", "test.add", "x", 1)
	require.ErrorIs(t, err, agent.ErrArguments)
	require.NoError(t, group[1].Close()) // after that nothing is logged

	var got []string
	for line := range strings.Lines(log.String()) {
		_, line, _ = strings.Cut(line, "level=")
		level, rest, _ := strings.Cut(line, " ")
		for _, what := range []string{"handler failed", "handler panicked", "call rejected", "out of memory", "not now", "no more", "wrong arguments"} {
			if strings.Contains(rest, what) {
				got = append(got, level+" "+what)
			}
		}
	}
	slices.Sort(got)
	require.Equal(t, []string{
		"DEBUG call rejected", "DEBUG handler failed", "DEBUG handler failed", "DEBUG handler failed",
		"DEBUG no more", "DEBUG not now", "DEBUG out of memory", "DEBUG wrong arguments",
		"ERROR handler panicked",
	}, got)
}
