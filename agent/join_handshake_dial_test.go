package agent

import (
	"context"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/roster"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// otherMember returns the roster entry of a member named "fellow" with rank 1 and the given URLs,
// which supports only this version of the protocol.
func otherMember(version uint32, urls ...string) roster.Member {
	return roster.Member{
		Name: "fellow", Rank: 1, Incarnation: roster.Incarnation{1}, URLs: urls,
		MinVersion: version, MaxVersion: version,
	}
}

// Join fails with ErrVersion, in a static and in a dynamic group, if another member supports no
// version in common.
func TestJoinWithIncompatibleVersion(t *testing.T) {
	s := store.NewMemory(store.Limits{})
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	join := func(world int, group string) error {
		_, err := Join(ctx, Config{Name: "worker0", WorldSize: world, Group: group, Store: s, Logger: slog.New(slog.DiscardHandler)})
		return err
	}
	other := testwait.Start(func() error {
		_, err := roster.JoinStatic(ctx, s, "static", otherMember(wire.Version+1), 2)
		return err
	})
	static := join(2, "static")
	require.ErrorIs(t, testwait.Finish(t, other), ErrVersion)
	_, err := roster.JoinDynamic(ctx, s, "dynamic", otherMember(wire.Version+1))
	require.NoError(t, err)
	for _, err := range []error{static, join(0, "dynamic")} {
		var e *Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, "join", e.Op)
		require.ErrorIs(t, err, ErrVersion)
		require.ErrorContains(t, err, "have no version in common")
		require.ErrorContains(t, err, "fellow")
	}
}

// answers listens at a TCP port until the end of the test and returns its URL. For each pipe it
// receives the hello and then calls treat, which answers in place of a worker. treat may not block
// longer than its ctx.
func answers(t *testing.T, treat func(ctx context.Context, pp *pipe.Pipe)) string {
	t.Helper()
	pipes, err := tensorpipe.NewContext(pipe.Options{Dialect: pipe.DialectNative})
	require.NoError(t, err)
	l, err := pipes.Listen(t.Context(), "uv://127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := testwait.Start(func() error {
		for {
			pp, err := l.Accept(ctx)
			if err != nil {
				return err
			}
			var h wire.Hello
			if err := receiveValue(ctx, pp, &h); err == nil {
				treat(ctx, pp)
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		require.NoError(t, pipes.Close())
		require.Error(t, testwait.Finish(t, ended))
	})
	return l.URLs()[0]
}

// shouts returns the URL of a TCP server that answers every connection with an HTTP error, and so
// does not speak the protocol of a pipe. The server is closed at the end of the test.
func shouts(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := testwait.Start(func() error {
		for {
			c, err := l.Accept()
			if err != nil {
				return err
			}
			_, _ = io.WriteString(c, "HTTP/1.0 400 Bad Request\r\n\r\n") // errors do not matter
			c.Close()
		}
	})
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		require.Error(t, testwait.Finish(t, ended))
	})
	return "uv://" + l.Addr().String()
}

// A call to a member that does not answer a hello correctly fails with the reason, as an error that
// matches ErrUnreachable. The caller can still be called.
func TestDialInvalidHandshake(t *testing.T) {
	says := func(m *pipe.Message) func(t *testing.T) string {
		return func(t *testing.T) string {
			return answers(t, func(ctx context.Context, pp *pipe.Pipe) { _ = pp.Write(ctx, m) })
		}
	}
	sendAccept := func(w wire.Answer) func(t *testing.T) string {
		return func(t *testing.T) string {
			return answers(t, func(ctx context.Context, pp *pipe.Pipe) { _ = sendValue(ctx, pp, &w) })
		}
	}
	for name, c := range map[string]struct {
		at   func(t *testing.T) string
		kind error
		text string
	}{
		"no pipe":       {shouts, ErrUnreachable, ""},
		"bytes":         {says(&pipe.Message{Metadata: []byte("HTTP/1.0 400 Bad Request")}), ErrProtocol, ""},
		"large":         {says(&pipe.Message{Metadata: make([]byte, 1<<20)}), ErrProtocol, ""},
		"payload":       {says(&pipe.Message{Metadata: []byte{1}, Payloads: []pipe.Payload{{Data: []byte("x")}}}), ErrProtocol, "a handshake message with tensors"},
		"other version": {sendAccept(wire.Answer{Version: wire.Version + 1}), ErrProtocol, "version 2 was never offered"},
		"refusal":       {sendAccept(wire.Answer{Refusal: &wire.Refusal{Code: wire.RejectedVersion, Text: "fellow speaks version 2"}}), ErrRefused, "fellow speaks version 2"},
		"no proof":      {sendAccept(wire.Answer{Version: wire.Version}), ErrRefused, "the worker does not know the token"},
		"silence": {func(t *testing.T) string { return answers(t, func(context.Context, *pipe.Pipe) {}) },
			context.DeadlineExceeded, ""},
		"end": {func(t *testing.T) string {
			return answers(t, func(_ context.Context, pp *pipe.Pipe) { pp.Abort(nil) })
		}, ErrUnreachable, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := store.NewMemory(store.Limits{})
			defer s.Close()
			url := c.at(t)
			echo := NewFunc[int, int]("test.echo")
			limit := testwait.Limit
			if name == "silence" {
				limit = time.Second
			}
			a, err := Join(t.Context(), Config{
				Name: "worker0", Store: s, Token: []byte("secret"), HandshakeTimeout: limit, Logger: slog.New(slog.DiscardHandler),
				Funcs: Funcs{echo.Serve(func(_ context.Context, n int) (int, error) { return n, nil })},
			})
			require.NoError(t, err)
			defer func() { require.NoError(t, a.Close()) }()
			_, err = roster.JoinDynamic(t.Context(), s, "default", otherMember(wire.Version, url))
			require.NoError(t, err)
			self := func() {
				n, err := echo.Call(t.Context(), a, "worker0", 7)
				require.NoError(t, err)
				require.Equal(t, 7, n)
			}
			self()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			_, err = echo.Call(ctx, a, "fellow", 7, WithTimeout(0))
			var e *Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, Error{Op: "call", Func: "test.echo", Worker: "fellow", Err: e.Err}, *e)
			require.ErrorIs(t, err, ErrUnreachable)
			require.ErrorIs(t, err, c.kind)
			require.ErrorContains(t, err, c.text)
			self()
		})
	}
}
