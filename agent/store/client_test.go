package store

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// scriptedServer starts a server and returns a client of it. The server replies to the request that
// Dial sends, and then sends answer for any request, on each connection once. Client and server end
// with the test.
func scriptedServer(t *testing.T, answer string) *Client {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	accepted := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-accepted })
	go func() {
		defer close(accepted)
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			text := answer
			if n == 0 {
				text = "\x01\x00\x00\x00\x00\x00\x00\x00" + answer
			}
			_, _ = c.Read(make([]byte, 1)) // reply only after a request
			_, _ = c.Write([]byte(text))   // an error shows at the client
		}
	}()
	c, err := Dial(t.Context(), l.Addr().String(), ClientOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func TestInvalidReplies(t *testing.T) {
	ctx := t.Context()
	endless := "\xff\xff\xff\xff\xff\xff\xff\xff"
	_, err := scriptedServer(t, endless).Get(ctx, "key")
	require.ErrorIs(t, err, ErrLimit)
	require.ErrorIs(t, scriptedServer(t, "\x07").Wait(ctx, "key"), ErrProtocol)

	for answer, want := range map[string]error{
		"\x03\x03":           ErrProtocol,
		"\x03\x09":           ErrProtocol,
		"\x03\x00" + endless: ErrLimit,
	} {
		w, err := scriptedServer(t, answer).Watch(ctx, "key")
		if err == nil {
			_, err = w.Next(ctx)
		}
		require.ErrorIs(t, err, want)
	}
}

// TestServerThatDoesNotReply tests that Set, Get and Watch return when their context ends although
// the server does not reply, and that the client then has no busy connection and few idle ones.
func TestServerThatDoesNotReply(t *testing.T) {
	c := scriptedServer(t, "")
	for op, call := range map[string]func(context.Context) error{
		"set":   func(ctx context.Context) error { return c.Set(ctx, "key", make([]byte, 8<<20)) },
		"get":   func(ctx context.Context) error { _, err := c.Get(ctx, "key"); return err },
		"watch": func(ctx context.Context) error { _, err := c.Watch(ctx, "key"); return err },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		done := testwait.Start(func() error { return call(ctx) })
		cancel()
		require.ErrorIs(t, testwait.Finish(t, done), context.Canceled, op)

		ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
		require.ErrorIs(t, call(ctx), ErrTimeout, op)
		cancel()
	}
	require.Empty(t, c.busy)
	require.LessOrEqual(t, len(c.idle), maxIdle)
}

func TestDialWaitsForTheServer(t *testing.T) {
	addr := freeport.Addr(t)

	// On a busy machine a short time may pass before the connection is refused.
	for d := 20 * time.Millisecond; ; d *= 2 {
		require.Less(t, d, testwait.Limit)
		early, cancel := context.WithTimeout(t.Context(), d)
		_, err := Dial(early, addr, ClientOptions{})
		cancel()
		require.ErrorIs(t, err, ErrTimeout)
		if errors.Is(err, syscall.ECONNREFUSED) {
			break // the error has the cause of the failed dials
		}
	}

	dialled := testwait.Start(func() error {
		c, err := Dial(t.Context(), addr, ClientOptions{})
		if err == nil {
			err = c.Close()
		}
		return err
	})
	s, err := Serve(t.Context(), addr, ServerOptions{})
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, testwait.Finish(t, dialled))
	n, err := s.table.get(initKey)
	require.NoError(t, err)
	require.Equal(t, "1", string(n), "PyTorch's clients are counted in the same way")
}

func TestDialBadAddress(t *testing.T) {
	for _, addr := range []string{"", "host", ":1", "host:0", "host:99999", "host:http", "[::1"} {
		_, err := Dial(t.Context(), addr, ClientOptions{})
		require.ErrorContains(t, err, "store: dial", addr)
	}
	_, err := Serve(t.Context(), "256.0.0.1:1", ServerOptions{})
	require.ErrorContains(t, err, "store: serve")
}

// TestClientReconnects tests that after a restart of the server the first call of a client fails
// with ErrDisconnected, and later ones, Watch included, succeed.
func TestClientReconnects(t *testing.T) {
	ctx := t.Context()
	s, err := Serve(ctx, "127.0.0.1:0", ServerOptions{})
	require.NoError(t, err)
	c, err := Dial(ctx, s.Addr(), ClientOptions{})
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Watch(ctx, "key")
	require.NoError(t, err)
	require.NoError(t, s.Close())
	again, err := Serve(ctx, s.Addr(), ServerOptions{})
	require.NoError(t, err)
	defer again.Close()
	require.ErrorIs(t, c.Set(ctx, "key", nil), ErrDisconnected)
	require.NoError(t, c.Set(ctx, "key", nil))
	<-c.watchConn.done
	w, err := c.Watch(ctx, "key")
	require.NoError(t, err)
	require.NoError(t, c.Set(ctx, "key", []byte("1")))
	change, err := w.Next(ctx)
	require.NoError(t, err)
	require.Equal(t, "1", string(change.Value))
}
