package pipe

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/internal/race"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// What was read is said before the goodbye, also where that comes after the writer has
// looked whether there is something to say.
func TestNativeGoodbyeIsBehindWhatWasRead(t *testing.T) {
	p := &nativePipe{Pipe: &Pipe{context: &Context{}}}
	c := &p.control
	c.init(p)
	c.noteRead(0)
	text, last := c.take()
	require.Empty(t, text, "nobody has asked")
	require.False(t, last)
	c.goodbye("")
	text, last = c.take()
	require.True(t, last)
	want := (&native.Control{Kind: native.HaveRead, Number: 0}).Append(nil, false)
	want = (&native.Control{Kind: native.Goodbye}).Append(want, false)
	require.Equal(t, want, text)
}

// The same in the compatible dialect, where only chance lets the goodbye come in
// between.
func TestCompatGoodbyeIsBehindWhatWasRead(t *testing.T) {
	for range race.Pick(20_000, 5_000) {
		c := &control{}
		c.init(&compat{Pipe: &Pipe{}}, struct{ transport.Conn }{})
		c.noteRead(0)
		go c.goodbye(ErrClosed)
		var said []wire.ControlKind
		for looks := 1; len(said) < 2; looks++ {
			if m, ok := c.pop(); ok {
				said = append(said, m.Kind)
			}
			if looks%100 == 0 { // often enough where there is no other processor for the goodbye
				runtime.Gosched()
			}
		}
		require.Equal(t, []wire.ControlKind{wire.HaveRead, wire.Goodbye}, said)
	}
}
