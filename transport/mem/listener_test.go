package mem

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// A Dial that finds the listener just before Close does not leave its connection in the queue.
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
