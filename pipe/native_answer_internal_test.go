package pipe

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// windowOf is a stream with this window.
type windowOf struct {
	transport.Stream
	bytes *int
}

func (w windowOf) SendWindow() int { return *w.bytes }

// TestAnswersThatExceedTheWindow checks that answers which do not fit the window are sent only as long as they make it
// grow.
func TestAnswersThatExceedTheWindow(t *testing.T) {
	window := 256 << 10
	o := &nativeWriter{window: windowOf{bytes: &window}}
	require.True(t, o.fitsWindow(200<<10))
	require.True(t, o.fitsWindow(1<<20), "it may grow")
	require.False(t, o.fitsWindow(1<<20), "it did not")
	require.False(t, o.fitsWindow(300<<10))
	require.True(t, o.fitsWindow(256<<10))
	window = 200 << 10 // a part is not returned yet
	require.False(t, o.fitsWindow(1<<20))
	window = 512 << 10
	require.True(t, o.fitsWindow(1<<20))
	require.False(t, o.fitsWindow(1<<20))
	window = 1 << 20
	require.True(t, o.fitsWindow(1<<20))
}
