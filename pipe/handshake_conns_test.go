package pipe

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// TestHandshakeErrorHasCauseAndPhase checks that the error of a handshake whose context has ended
// matches the cause and names the phase. Another error is only in the text, and is left out if it
// is a consequence of that end.
func TestHandshakeErrorHasCauseAndPhase(t *testing.T) {
	cancelled := errors.New("cancelled")
	refused := fmt.Errorf("dial: %w", syscall.ECONNREFUSED)
	for name, c := range map[string]struct {
		cause, err error
		text       string
		is         error
	}{
		"failure":          {nil, refused, "dial: connection refused", syscall.ECONNREFUSED},
		"timeout":          {ErrHandshakeTimeout, fmt.Errorf("read: %w", ErrClosed), "handshake timed out while waiting for the answer", ErrHandshakeTimeout},
		"cause is known":   {ErrHandshakeTimeout, fmt.Errorf("wait: %w", ErrHandshakeTimeout), "handshake timed out while waiting for the answer", ErrHandshakeTimeout},
		"another error":    {ErrHandshakeTimeout, refused, "handshake timed out while waiting for the answer: dial: connection refused", ErrHandshakeTimeout},
		"caller's context": {cancelled, ErrClosed, "cancelled while waiting for the answer", cancelled},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, end := context.WithCancelCause(t.Context())
			defer end(nil)
			hc := newHandshakeConns(ctx)
			defer hc.close()
			hc.phase = phaseAnswer
			if c.cause != nil {
				end(c.cause)
			}
			err := hc.wrapError(c.err)
			require.EqualError(t, err, "handshake failed: "+c.text)
			require.ErrorIs(t, err, ErrHandshake)
			require.ErrorIs(t, err, c.is)
			require.NotErrorIs(t, err, ErrClosed)
			require.Equal(t, c.cause == nil, errors.Is(err, syscall.ECONNREFUSED))
		})
	}
}

// TestConnsAfterTheEnd checks that handshakeConns that were closed or detached close a connection
// that is added later, and return ErrClosed although the context goes on.
func TestConnsAfterTheEnd(t *testing.T) {
	for name, end := range map[string]func(hc *handshakeConns) error{
		"closed":   func(hc *handshakeConns) error { hc.close(); return nil },
		"detached": (*handshakeConns).detach,
	} {
		t.Run(name, func(t *testing.T) {
			hc := newHandshakeConns(t.Context())
			defer hc.close()
			require.NoError(t, end(hc))
			conn := &closableConn{}
			require.ErrorIs(t, hc.add(conn), ErrClosed)
			require.True(t, conn.closed)
			require.ErrorIs(t, hc.detach(), ErrClosed)
		})
	}
}

// closableConn is a connection of which only Close may be called.
type closableConn struct {
	transport.Conn
	closed bool
}

func (c *closableConn) Close() error {
	c.closed = true
	return nil
}
