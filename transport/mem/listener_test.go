package mem

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// A Dial that found the listener just before Close must not leave its
// connection in a queue that nobody looks at any more.
func TestOfferToAClosedListener(t *testing.T) {
	l := newListener(NewNetwork(), "name")
	require.NoError(t, l.Close())
	queued := 0
	for range 100 {
		near, far := pair("near", "far", 1)
		if l.offer(context.Background(), far) != nil {
			continue
		}
		queued++
		_, err := near.NextFrame()
		require.Equal(t, io.EOF, err)
	}
	require.NotZero(t, queued, "select takes either way")
}
