package pipe

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// The error of a handshake whose context has ended has the cause, the phase and the text
// of another error. Errors of connections that were closed for that cause do not match.
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
