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

// Confirmations of read messages are sent before the close frame, also if they were not
// requested when the writer last checked.
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

// In the compatible dialect the close frame may be queued at any moment while the writer
// collects frames; the order is the same.
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
