package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/loglines"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// loner joins a group of one that listens over TCP, and returns its address. edit may
// change what it is.
func loner(t *testing.T, edit func(*Config)) (*Agent, string) {
	t.Helper()
	s := store.NewMemory(store.Limits{})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	echo := NewFunc[int, int]("test.echo")
	c := Config{
		Name: "worker0", WorldSize: 1, Store: s, Listen: []string{"uv://127.0.0.1:0"}, Logger: slog.New(slog.DiscardHandler),
		Funcs: Funcs{echo.Serve(func(_ context.Context, n int) (int, error) { return n, nil })},
	}
	if edit != nil {
		edit(&c)
	}
	a, err := Join(t.Context(), c)
	require.NoError(t, err)
	t.Cleanup(func() {
		n, err := echo.Call(context.Background(), a, "worker0", 7) // whatever has happened
		require.NoError(t, err)
		require.Equal(t, 7, n)
		require.NoError(t, a.Close())
	})
	return a, a.listener.URLs()[0]
}

// greet introduces who has that token, and returns why the pipe is not wanted.
func greet(ctx context.Context, t *testing.T, line *pipe.Pipe, h *hello, token []byte) error {
	t.Helper()
	if err := show(ctx, t, line, h, token); err != nil {
		return err
	}
	return verdict(ctx, t, line)
}

// show is greet up to the proof.
func show(ctx context.Context, t *testing.T, line *pipe.Pipe, h *hello, token []byte) error {
	t.Helper()
	require.NoError(t, say(ctx, line, h))
	var w welcome
	require.NoError(t, hear(ctx, line, &w))
	if w.Refusal != nil {
		return w.Refusal.err()
	}
	who := Agent{token: token}
	require.NoError(t, say(ctx, line, &proof{Proof: who.proof("hello", h, w.Nonce)}))
	return nil
}

// verdict is what the other end says to the proof.
func verdict(ctx context.Context, t *testing.T, line *pipe.Pipe) error {
	t.Helper()
	var d done
	require.NoError(t, hear(ctx, line, &d))
	return d.Refusal.err()
}

// A peer that cannot have a pipe is told why, and the agent lives on.
func TestUnwelcome(t *testing.T) {
	a, url := loner(t, nil)
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
		"moved":    {func(h *hello) { h.Group = "other"; h.To.Incarnation[0]++ }, "its address is that of another incarnation or worker", ErrRestarted},
		"stranger": {func(*hello) {}, "does not know a worker stranger", ErrRefused},
		"impostor": {func(h *hello) { h.From.Name = "worker0" }, "worker worker0 is known as another incarnation", ErrRestarted},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, line := lineTo(t, a, url)
			h := good()
			c.spoil(&h)
			err := greet(ctx, t, line, &h, nil)
			require.ErrorIs(t, err, ErrRefused)
			require.ErrorIs(t, err, c.kind)
			require.ErrorContains(t, err, c.text)
		})
	}
}

// lineTo is a pipe on which nobody has said anything, and a context for what is.
func lineTo(t *testing.T, a *Agent, url string) (context.Context, *pipe.Pipe) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	line, err := a.pipes.Dial(ctx, url)
	require.NoError(t, err)
	t.Cleanup(func() { line.Abort(nil) })
	return ctx, line
}

// readings is a store that counts how often it is read. Nobody can watch it.
type readings struct {
	store.Store
	n atomic.Int64
}

func (r *readings) Get(ctx context.Context, key string) ([]byte, error) {
	r.n.Add(1)
	return r.Store.Get(ctx, key)
}

func (r *readings) Watch(context.Context, string) (store.Watcher, error) {
	return nil, errors.ErrUnsupported
}

// Nothing is looked up for who does not know the token: that may be anybody.
func TestStoreIsNotReadForStrangers(t *testing.T) {
	var s readings
	a, url := loner(t, func(c *Config) {
		s.Store = c.Store
		c.Store, c.Token, c.WorldSize = &s, []byte("secret"), 0
	})
	for name, c := range map[string]struct {
		token []byte
		text  string
		reads bool
	}{
		"none":  {nil, "stranger does not know the token of the group", false},
		"wrong": {[]byte("guess"), "stranger does not know the token of the group", false},
		"right": {[]byte("secret"), "does not know a worker stranger", true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, line := lineTo(t, a, url)
			before := s.n.Load()
			h := hello{Oldest: protocol, Newest: protocol, Group: "default", From: identity{Name: "stranger"}, To: a.identity()}
			err := greet(ctx, t, line, &h, c.token)
			require.ErrorIs(t, err, ErrRefused)
			require.ErrorContains(t, err, c.text)
			require.Equal(t, c.reads, s.n.Load() > before)
		})
	}
}

// holding is a store whose answers are held back.
type holding struct {
	readings
	hold       atomic.Bool
	asked, may chan struct{}
}

func (s *holding) Get(ctx context.Context, key string) ([]byte, error) {
	if s.hold.Load() {
		select {
		case s.asked <- struct{}{}:
		default: // that is known
		}
		if err := await(ctx, s.may); err != nil {
			return nil, err
		}
	}
	return s.readings.Get(ctx, key)
}

// Who has shown the token gives way to no stranger, however long the store takes.
func TestWhoKnowsTheTokenDoesNotGiveWay(t *testing.T) {
	const most = 4
	s := holding{asked: make(chan struct{}, 1), may: make(chan struct{})}
	a, url := loner(t, func(c *Config) {
		s.Store = c.Store
		c.Store, c.WorldSize, c.Token = &s, 0, []byte("secret")
		c.Limits.Greetings, c.HandshakeTimeout = most, time.Hour
	})
	s.hold.Store(true)
	ctx, line := lineTo(t, a, url)
	h := hello{Oldest: protocol, Newest: protocol, Group: "default", From: identity{Name: "fellow"}, To: a.identity()}
	require.NoError(t, show(ctx, t, line, &h, a.token))
	<-s.asked
	ended := make(chan error, 2*most)
	for range 2 * most {
		ctx, line := lineTo(t, a, url)
		go func() {
			_, err := line.Next(ctx)
			ended <- err
		}()
	}
	for range most {
		err := patience.Finish(t, ended)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
	}
	close(s.may)
	err := verdict(ctx, t, line)
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorContains(t, err, "does not know a worker fellow", "which is what the store says")
}

// What is no greeting ends the pipe that it comes on.
func TestGarbage(t *testing.T) {
	var log loglines.Lines
	a, url := loner(t, func(c *Config) { c.Logger = log.Logger() })
	for name, m := range map[string]pipe.Message{
		"empty":   {},
		"bytes":   {Metadata: []byte("GET / HTTP/1.0\r\n\r\n")},
		"large":   {Metadata: make([]byte, 1<<20)},
		"payload": {Metadata: []byte{1}, Payloads: []pipe.Payload{{Data: []byte("x")}}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, line := lineTo(t, a, url)
			before, said := a.stats.turnedAway.Load(), len(log.String())
			require.NoError(t, line.Write(ctx, &m))
			// It may want to read why; who says more is cut off.
			_ = line.Write(ctx, &m)
			_, err := line.Next(ctx)
			require.Error(t, err)
			require.NoError(t, ctx.Err())
			require.Equal(t, before+1, a.stats.turnedAway.Load())
			require.Contains(t, log.String()[said:], "worker turned away")
			require.Contains(t, log.String()[said:], ErrProtocol.Error())
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
