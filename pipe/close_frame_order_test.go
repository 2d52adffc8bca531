package pipe

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// TestNativeCloseFrameFollowsConfirmations checks that the native dialect sends the confirmations
// of read messages before the close frame, also if the peer had not requested them when the writer
// last looked for frames.
func TestNativeCloseFrameFollowsConfirmations(t *testing.T) {
	p := &nativePipe{Pipe: &Pipe{context: &Context{}}}
	c := &p.control
	c.init(p)
	c.noteRead(0)
	text, last := c.take()
	require.Empty(t, text, "no confirmation was requested")
	require.False(t, last)
	c.sendClose("")
	text, last = c.take()
	require.True(t, last)
	want := (&native.Control{Kind: native.HaveRead, Number: 0}).Append(nil, false)
	want = (&native.Control{Kind: native.Goodbye}).Append(want, false)
	require.Equal(t, want, text)
}

// TestCompatCloseFrameFollowsConfirmations checks that the compatible dialect sends the
// confirmations of read messages before the close frame, also if the close frame is queued while
// the writer collects frames.
func TestCompatCloseFrameFollowsConfirmations(t *testing.T) {
	for range race.Pick(20_000, 5_000) {
		c := &compatControl{}
		c.init(&compat{Pipe: &Pipe{}}, struct{ transport.Conn }{})
		c.noteRead(0)
		go c.sendClose("")
		var sent []wire.ControlKind
		for polls := 1; len(sent) < 2; polls++ {
			if m, ok := c.take(); ok {
				sent = append(sent, m.Kind)
			}
			if polls%100 == 0 { // lets sendClose run on a single processor
				runtime.Gosched()
			}
		}
		require.Equal(t, []wire.ControlKind{wire.HaveRead, wire.Goodbye}, sent)
	}
}
