package pipe

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestClosedBefore checks that closedBefore returns true if one of its channels is closed, even if
// its context has ended too, and false if only the context has ended.
func TestClosedBefore(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	closed, open := make(chan struct{}), make(chan struct{})
	close(closed)
	for range 100 {
		require.True(t, closedBefore(ended, closed, nil))
		require.True(t, closedBefore(ended, open, closed))
		require.True(t, closedBefore(t.Context(), closed, open))
		require.False(t, closedBefore(ended, open, nil))
	}
}
