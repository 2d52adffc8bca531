package pipe

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// An opening that somebody ended says what it waited for, and what was wrong
// besides; what it closed itself is no news, and matches nothing.
func TestOpeningExplains(t *testing.T) {
	impatient := errors.New("impatient")
	refused := fmt.Errorf("dial: %w", syscall.ECONNREFUSED)
	for name, c := range map[string]struct {
		cause, err error
		text       string
		is         error
	}{
		"it failed":         {nil, refused, "dial: connection refused", syscall.ECONNREFUSED},
		"time ran out":      {ErrHandshakeTimeout, fmt.Errorf("read: %w", ErrClosed), "handshake timed out while waiting for the answer", ErrHandshakeTimeout},
		"it knows already":  {ErrHandshakeTimeout, fmt.Errorf("wait: %w", ErrHandshakeTimeout), "handshake timed out while waiting for the answer", ErrHandshakeTimeout},
		"something besides": {ErrHandshakeTimeout, refused, "handshake timed out while waiting for the answer: dial: connection refused", ErrHandshakeTimeout},
		"the caller's end":  {impatient, ErrClosed, "impatient while waiting for the answer", impatient},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, end := context.WithCancelCause(t.Context())
			defer end(nil)
			o := newOpening(ctx)
			defer o.abandon()
			o.phase = phaseAnswer
			if c.cause != nil {
				end(c.cause)
			}
			err := o.explain(c.err)
			require.EqualError(t, err, "handshake failed: "+c.text)
			require.ErrorIs(t, err, ErrHandshake)
			require.ErrorIs(t, err, c.is)
			require.NotErrorIs(t, err, ErrClosed)
			require.Equal(t, c.cause == nil, errors.Is(err, syscall.ECONNREFUSED))
		})
	}
}
