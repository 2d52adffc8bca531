package pipe

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// What has come counts though the time is over, every time.
func TestInTime(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	come, open := make(chan struct{}), make(chan struct{})
	close(come)
	for range 100 {
		require.True(t, inTime(over, come, nil))
		require.True(t, inTime(over, open, come))
		require.True(t, inTime(t.Context(), come, open))
		require.False(t, inTime(over, open, nil))
	}
}
