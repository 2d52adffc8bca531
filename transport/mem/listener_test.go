package mem

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDialDuringClose checks that a connection that Dial queues while the listener is being closed
// does not stay in the queue: its other end is closed, so that the dialled end reads io.EOF.
func TestDialDuringClose(t *testing.T) {
	l := newListener(NewNetwork(), "name")
	require.NoError(t, l.Close())
	queued := 0
	for range 100 {
		near, far := pair("near", "far", 1)
		if l.enqueue(context.Background(), far) != nil {
			continue
		}
		queued++
		_, err := near.NextFrame()
		require.Equal(t, io.EOF, err)
	}
	require.NotZero(t, queued, "select takes either way")
}
