package shm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Peers of ours take frames of any size as they come. Those that leave tokens may
// be C++ ones, which take some frames whole, out of a ring in which the frame's
// length comes first. The ring is the peer's, and so is its size.
func TestLargestWhole(t *testing.T) {
	for _, c := range connects(t, New()) {
		require.Zero(t, c.LargestWhole())
	}
	for _, c := range connects(t, New(tokens)) {
		require.Equal(t, inboxSize-4, c.LargestWhole())
	}
	l := listen(t)
	s := newStranger(t, l)
	s.inbox = unsealed(t, 4096)
	require.Equal(t, 4096-4, s.shake(t, l, 0, 1).(transport.Whole).LargestWhole())
}

// connects returns both ends of a connection.
func connects(t *testing.T, tr *Transport) [2]*conn {
	d, a := connect(t, tr)
	return [2]*conn{d, a}
}
