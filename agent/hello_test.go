package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// loner joins a group of one that listens over TCP, and returns its address.
func loner(t *testing.T) (*Agent, string) {
	t.Helper()
	s := store.NewMemory(store.Limits{})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	echo := NewFunc[int, int]("test.echo")
	a, err := Join(t.Context(), Config{
		Name: "worker0", WorldSize: 1, Store: s, Listen: []string{"uv://127.0.0.1:0"}, Logger: slog.New(slog.DiscardHandler),
		Funcs: Funcs{echo.Serve(func(_ context.Context, n int) (int, error) { return n, nil })},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		n, err := echo.Call(context.Background(), a, "worker0", 7) // whatever has happened
		require.NoError(t, err)
		require.Equal(t, 7, n)
		require.NoError(t, a.Close())
	})
	return a, a.listener.URLs()[0]
}

// A peer that cannot have a pipe is told why, and the agent lives on.
func TestUnwelcome(t *testing.T) {
	a, url := loner(t)
	good := func() hello {
		return hello{Oldest: protocol, Newest: protocol, Group: "default", From: identity{Name: "stranger"}, To: a.identity()}
	}
	for name, c := range map[string]struct {
		spoil func(*hello)
		text  string
		kind  error
	}{
		"version":  {func(h *hello) { h.Oldest, h.Newest = protocol+1, protocol+2 }, "worker0 speaks version 1, not 2 to 3", ErrRefused},
		"group":    {func(h *hello) { h.Group = "other" }, `worker0 is in group "default", not "other"`, ErrRefused},
		"other":    {func(h *hello) { h.To.Incarnation[0]++ }, "its address is that of another incarnation", ErrRestarted},
		"stranger": {func(*hello) {}, "does not know a worker stranger", ErrRefused},
		"impostor": {func(h *hello) { h.From.Name = "worker0" }, "worker worker0 is known as another incarnation", ErrRestarted},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			line, err := a.pipes.Dial(ctx, url)
			require.NoError(t, err)
			defer line.Abort(nil)
			h := good()
			c.spoil(&h)
			require.NoError(t, say(ctx, line, &h))
			var w welcome
			require.NoError(t, hear(ctx, line, &w))
			err = w.Refusal.err()
			require.ErrorIs(t, err, ErrRefused)
			require.ErrorIs(t, err, c.kind)
			require.ErrorContains(t, err, c.text)
		})
	}
}

// What is no greeting ends the pipe that it comes on.
func TestGarbage(t *testing.T) {
	a, url := loner(t)
	for name, m := range map[string]pipe.Message{
		"empty":   {},
		"bytes":   {Metadata: []byte("GET / HTTP/1.0\r\n\r\n")},
		"large":   {Metadata: make([]byte, 1<<20)},
		"payload": {Metadata: []byte{1}, Payloads: []pipe.Payload{{Data: []byte("x")}}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			line, err := a.pipes.Dial(ctx, url)
			require.NoError(t, err)
			defer line.Abort(nil)
			before := a.stats.turnedAway.Load()
			require.NoError(t, line.Write(ctx, &m))
			// It may want to read why; who says more is cut off.
			_ = line.Write(ctx, &m)
			_, err = line.Next(ctx)
			require.Error(t, err)
			require.NoError(t, ctx.Err())
			require.Equal(t, before+1, a.stats.turnedAway.Load())
		})
	}
	t.Run("no pipe", func(t *testing.T) {
		c, err := net.Dial("tcp", url[len("uv://"):])
		require.NoError(t, err)
		defer c.Close()
		_, err = c.Write([]byte("GET / HTTP/1.0\r\n\r\n"))
		require.NoError(t, err)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
		_, err = c.Read(make([]byte, 1))
		var timeout net.Error
		require.False(t, errors.As(err, &timeout) && timeout.Timeout(), "%v", err)
		require.Error(t, err)
	})
}
