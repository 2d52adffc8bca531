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

	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/loglines"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// joinSingle joins a group of one worker that listens over TCP, and returns the agent and its URL.
// edit may change the Config and may be nil. At the end of the test joinSingle requires that a call
// to the worker succeeds, and closes it.
func joinSingle(t *testing.T, edit func(*Config)) (*Agent, string) {
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
		n, err := echo.Call(context.Background(), a, "worker0", 7) // after whatever the test did
		require.NoError(t, err)
		require.Equal(t, 7, n)
		require.NoError(t, a.Close())
	})
	return a, a.listener.URLs()[0]
}

// handshakeAs performs the handshake of the end that opened the pipe pp, with the hello h and with
// token. It returns nil if the agent accepts the pipe, and otherwise the reason of the rejection.
// It fails the test if a message cannot be sent or received.
func handshakeAs(ctx context.Context, t *testing.T, pp *pipe.Pipe, h *wire.Hello, token []byte) error {
	t.Helper()
	if err := sendProof(ctx, t, pp, h, token); err != nil {
		return err
	}
	return receiveResult(ctx, t, pp)
}

// sendProof performs the handshake of the end that opened the pipe pp up to the message that proves
// that it knows token. It returns nil, or the reason of the rejection if the agent rejects the
// hello h.
func sendProof(ctx context.Context, t *testing.T, pp *pipe.Pipe, h *wire.Hello, token []byte) error {
	t.Helper()
	require.NoError(t, sendValue(ctx, pp, h))
	var w wire.Answer
	require.NoError(t, receiveValue(ctx, pp, &w))
	if w.Refusal != nil {
		return refusalError(w.Refusal)
	}
	require.NoError(t, sendValue(ctx, pp, &wire.Proof{Proof: h.Prove(token, wire.Dialing, w.Nonce)}))
	return nil
}

// receiveResult receives the last message of the handshake. It returns nil if the agent accepts the
// pipe, and otherwise the reason of the rejection.
func receiveResult(ctx context.Context, t *testing.T, pp *pipe.Pipe) error {
	t.Helper()
	var d wire.Done
	require.NoError(t, receiveValue(ctx, pp, &d))
	return refusalError(d.Refusal)
}

// A peer whose pipe is rejected because of its hello gets the reason. The agent still serves
// others, which joinSingle checks.
func TestRejectedHandshake(t *testing.T) {
	a, url := joinSingle(t, nil)
	good := func() wire.Hello {
		return wire.Hello{Oldest: wire.Version, Newest: wire.Version, Group: "default", From: wire.Identity{Name: "stranger"}, To: a.identity()}
	}
	for name, c := range map[string]struct {
		spoil func(*wire.Hello)
		text  string
		kind  error
	}{
		"version":  {func(h *wire.Hello) { h.Oldest, h.Newest = wire.Version+1, wire.Version+2 }, "worker0 speaks version 1, not 2 to 3", ErrRefused},
		"group":    {func(h *wire.Hello) { h.Group = "other" }, `worker0 is in group "default", not "other"`, ErrRefused},
		"other":    {func(h *wire.Hello) { h.To.Incarnation[0]++ }, "its address is that of another incarnation", ErrRestarted},
		"moved":    {func(h *wire.Hello) { h.Group = "other"; h.To.Incarnation[0]++ }, "its address is that of another incarnation or worker", ErrRestarted},
		"stranger": {func(*wire.Hello) {}, "does not know a worker stranger", ErrRefused},
		"impostor": {func(h *wire.Hello) { h.From.Name = "worker0" }, "worker worker0 is known as another incarnation", ErrRestarted},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, pp := dialPipe(t, a, url)
			h := good()
			c.spoil(&h)
			err := handshakeAs(ctx, t, pp, &h, nil)
			require.ErrorIs(t, err, ErrRefused)
			require.ErrorIs(t, err, c.kind)
			require.ErrorContains(t, err, c.text)
		})
	}
}

// dialPipe opens a pipe to url with the pipe context of a, without a handshake. It returns the
// pipe, which is aborted at the end of the test, and a context with a timeout for its use.
func dialPipe(t *testing.T, a *Agent, url string) (context.Context, *pipe.Pipe) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	pp, err := a.pipes.Dial(ctx, url)
	require.NoError(t, err)
	t.Cleanup(func() { pp.Abort(nil) })
	return ctx, pp
}

// countedReads is a store that counts its reads and cannot be watched.
type countedReads struct {
	store.Store
	n atomic.Int64
}

func (r *countedReads) Get(ctx context.Context, key string) ([]byte, error) {
	r.n.Add(1)
	return r.Store.Get(ctx, key)
}

func (r *countedReads) Watch(context.Context, string) (store.Watcher, error) {
	return nil, errors.ErrUnsupported
}

// The agent reads the store because of a handshake only after the peer has proved that it knows the
// token.
func TestStoreNotReadBeforeProof(t *testing.T) {
	var s countedReads
	a, url := joinSingle(t, func(c *Config) {
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
			ctx, pp := dialPipe(t, a, url)
			before := s.n.Load()
			h := wire.Hello{Oldest: wire.Version, Newest: wire.Version, Group: "default", From: wire.Identity{Name: "stranger"}, To: a.identity()}
			err := handshakeAs(ctx, t, pp, &h, c.token)
			require.ErrorIs(t, err, ErrRefused)
			require.ErrorContains(t, err, c.text)
			require.Equal(t, c.reads, s.n.Load() > before)
		})
	}
}

// blockedReads is a store whose reads can be blocked.
type blockedReads struct {
	countedReads
	hold       atomic.Bool
	asked, may chan struct{}
}

func (s *blockedReads) Get(ctx context.Context, key string) ([]byte, error) {
	if s.hold.Load() {
		select {
		case s.asked <- struct{}{}:
		default: // reported already
		}
		if err := await(ctx, s.may); err != nil {
			return nil, err
		}
	}
	return s.countedReads.Get(ctx, key)
}

// A peer that has proved that it knows the token is not evicted by many newer pipes, however long
// the store takes.
func TestProvenPeerIsNotEvicted(t *testing.T) {
	const most = 4
	s := blockedReads{asked: make(chan struct{}, 1), may: make(chan struct{})}
	a, url := joinSingle(t, func(c *Config) {
		s.Store = c.Store
		c.Store, c.WorldSize, c.Token = &s, 0, []byte("secret")
		c.Limits.MaxHandshakes, c.HandshakeTimeout = most, time.Hour
	})
	s.hold.Store(true)
	ctx, pp := dialPipe(t, a, url)
	h := wire.Hello{Oldest: wire.Version, Newest: wire.Version, Group: "default", From: wire.Identity{Name: "fellow"}, To: a.identity()}
	require.NoError(t, sendProof(ctx, t, pp, &h, a.token))
	<-s.asked
	ended := make(chan error, 2*most)
	for range 2 * most {
		ctx, pp := dialPipe(t, a, url)
		go func() {
			_, err := pp.Next(ctx)
			ended <- err
		}()
	}
	for range most {
		err := testwait.Finish(t, ended)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
	}
	close(s.may)
	err := receiveResult(ctx, t, pp)
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorContains(t, err, "does not know a worker fellow", "the members in the store")
}

// An invalid handshake message ends its pipe, and is logged and counted. The agent still serves
// others, which joinSingle checks.
func TestGarbage(t *testing.T) {
	var log loglines.Lines
	a, url := joinSingle(t, func(c *Config) { c.Logger = log.Logger() })
	for name, m := range map[string]pipe.Message{
		"empty":   {},
		"bytes":   {Metadata: []byte("GET / HTTP/1.0\r\n\r\n")},
		"large":   {Metadata: make([]byte, 1<<20)},
		"payload": {Metadata: []byte{1}, Payloads: []pipe.Payload{{Data: []byte("x")}}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, pp := dialPipe(t, a, url)
			before, said := a.stats.rejectedPipes.Load(), len(log.String())
			require.NoError(t, pp.Write(ctx, &m))
			// The agent waits for the peer to read the reason; a further message ends the pipe.
			_ = pp.Write(ctx, &m)
			_, err := pp.Next(ctx)
			require.Error(t, err)
			require.NoError(t, ctx.Err())
			require.Equal(t, before+1, a.stats.rejectedPipes.Load())
			require.Contains(t, log.String()[said:], "worker rejected")
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

// A client without a name gets the status only after it has proved that it knows the token, and no
// agent asks the store because of it. A pipe that the client leaves open ends with the handshake
// timeout.
func TestStatusHandshake(t *testing.T) {
	t.Parallel()
	var s countedReads
	a, url := joinSingle(t, func(c *Config) {
		s.Store = c.Store
		c.Store, c.Token, c.WorldSize, c.HandshakeTimeout = &s, []byte("secret"), 0, 5*time.Second
	})
	before := s.n.Load()
	h := wire.Hello{Oldest: wire.Version, Newest: wire.Version, Group: "default", To: a.identity()}
	ctx, pp := dialPipe(t, a, url)
	err := handshakeAs(ctx, t, pp, &h, []byte("guess"))
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorContains(t, err, "the client does not know the token")
	_, err = pp.Next(ctx)
	require.Error(t, err, "no status")

	ctx, pp = dialPipe(t, a, url)
	require.NoError(t, handshakeAs(ctx, t, pp, &h, []byte("secret")))
	in, err := pp.Next(ctx)
	require.NoError(t, err)
	status, err := wire.DecodeStatus(in.Descriptor().Metadata)
	require.NoError(t, err)
	require.Equal(t, &wire.Status{}, status)
	require.NoError(t, in.Discard(ctx))
	_, err = pp.Next(ctx)
	require.ErrorIs(t, err, pipe.ErrPeerClosed, "the agent does not keep the pipe")
	require.Equal(t, before, s.n.Load())
	require.EqualValues(t, 1, a.Metrics().RejectedPipes)
}
