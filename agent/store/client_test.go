package store

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
)

// liar is a server that answers the greeting, and then what it is told, whatever
// it is asked.
func liar(t *testing.T, answer string) *Client {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-ended })
	go func() {
		defer close(ended)
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
			_, _ = c.Read(make([]byte, 1)) // an answer that comes before the question is another lie
			_, _ = c.Write([]byte(text))   // who hangs up shows at the other end
		}
	}()
	c, err := Dial(t.Context(), l.Addr().String(), ClientOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func TestAnswersOfALiar(t *testing.T) {
	ctx := t.Context()
	endless := "\xff\xff\xff\xff\xff\xff\xff\xff"
	_, err := liar(t, endless).Get(ctx, "key")
	require.ErrorIs(t, err, ErrLimit)
	require.ErrorIs(t, liar(t, "\x07").Wait(ctx, "key"), ErrProtocol)

	for answer, want := range map[string]error{
		"\x03\x03":           ErrProtocol,
		"\x03\x09":           ErrProtocol,
		"\x03\x00" + endless: ErrLimit,
	} {
		w, err := liar(t, answer).Watch(ctx, "key")
		if err == nil {
			_, err = w.Next(ctx)
		}
		require.ErrorIs(t, err, want)
	}
}

// A call ends with its context where the server does not answer, and the client
// goes on.
func TestServerThatIsSilent(t *testing.T) {
	c := liar(t, "")
	for op, call := range map[string]func(context.Context) error{
		"set":   func(ctx context.Context) error { return c.Set(ctx, "key", make([]byte, 8<<20)) },
		"get":   func(ctx context.Context) error { _, err := c.Get(ctx, "key"); return err },
		"watch": func(ctx context.Context) error { _, err := c.Watch(ctx, "key"); return err },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		done := patience.Start(func() error { return call(ctx) })
		cancel()
		require.ErrorIs(t, patience.Finish(t, done), context.Canceled, op)

		ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
		require.ErrorIs(t, call(ctx), ErrTimeout, op)
		cancel()
	}
	require.Empty(t, c.busy)
	require.LessOrEqual(t, len(c.idle), maxIdle)
}

func TestDialWaitsForTheServer(t *testing.T) {
	addr := freeport.Addr(t)

	// A busy machine may not get to the first refusal in a short time.
	for d := 20 * time.Millisecond; ; d *= 2 {
		require.Less(t, d, patience.Limit)
		early, cancel := context.WithTimeout(t.Context(), d)
		_, err := Dial(early, addr, ClientOptions{})
		cancel()
		require.ErrorIs(t, err, ErrTimeout)
		if errors.Is(err, syscall.ECONNREFUSED) {
			break // it says what it was waiting for
		}
	}

	dialled := patience.Start(func() error {
		c, err := Dial(t.Context(), addr, ClientOptions{})
		if err == nil {
			err = c.Close()
		}
		return err
	})
	s, err := Serve(t.Context(), addr, ServerOptions{})
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, patience.Finish(t, dialled))
	n, err := s.table.get(initKey)
	require.NoError(t, err)
	require.Equal(t, "1", string(n), "clients of PyTorch are counted like that")
}

func TestDialBadAddress(t *testing.T) {
	for _, addr := range []string{"", "host", ":1", "host:0", "host:99999", "host:http", "[::1"} {
		_, err := Dial(t.Context(), addr, ClientOptions{})
		require.ErrorContains(t, err, "store: dial", addr)
	}
	_, err := Serve(t.Context(), "256.0.0.1:1", ServerOptions{})
	require.ErrorContains(t, err, "store: serve")
}

// A restarted server is met by the next call but one, at the latest.
func TestClientConnectsAnew(t *testing.T) {
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
	<-c.link.done
	w, err := c.Watch(ctx, "key")
	require.NoError(t, err)
	require.NoError(t, c.Set(ctx, "key", []byte("1")))
	change, err := w.Next(ctx)
	require.NoError(t, err)
	require.Equal(t, "1", string(change.Value))
}
