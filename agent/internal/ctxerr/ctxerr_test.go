package ctxerr

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var errOwn = errors.New("own cause")

// Cause and Wrap return errors that match ErrTimeout after a deadline, and no others.
func TestCause(t *testing.T) {
	past := time.Unix(1, 0)
	deadline, stop := context.WithDeadline(t.Context(), past)
	defer stop()
	withCause, stopWithCause := context.WithDeadlineCause(t.Context(), past, errOwn)
	defer stopWithCause()
	cancelled, cancel := context.WithCancelCause(t.Context())
	cancel(errOwn)
	for _, c := range []struct {
		err     error
		text    string
		matches []error
		timeout bool
	}{
		{Cause(deadline), "context deadline exceeded", []error{context.DeadlineExceeded}, true},
		{Cause(withCause), "own cause", []error{context.DeadlineExceeded, errOwn}, true},
		{Cause(cancelled), "own cause", []error{errOwn}, false},
		{Wrap(context.DeadlineExceeded), "context deadline exceeded", []error{context.DeadlineExceeded}, true},
		{Wrap(fmt.Errorf("x: %w", context.DeadlineExceeded)), "x: context deadline exceeded", []error{context.DeadlineExceeded}, true},
		{Wrap(context.Canceled), "context canceled", []error{context.Canceled}, false},
	} {
		require.EqualError(t, c.err, c.text)
		for _, want := range c.matches {
			require.ErrorIs(t, c.err, want)
		}
		require.Equal(t, c.timeout, errors.Is(c.err, ErrTimeout), c.text)
	}
	require.NoError(t, Cause(t.Context()))
	require.NoError(t, Wrap(nil))
}
