package pipe

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// A channel that is closed counts even if the context has ended too.
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
