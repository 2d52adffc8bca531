package shm

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/internal/ring"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// crowded returns a connection whose peer looks at no tokens and has room for
// two, which are there.
func crowded(t *testing.T) (transport.Conn, *stranger) {
	t.Helper()
	l := listen(t)
	s := newStranger(t, l)
	s.reactor = unsealed(t, 2*tokenSize)
	c := s.shake(t, l, 5, 6)
	for range 2 {
		require.NoError(t, c.WriteFrames(transport.Frame{}))
	}
	return c, s
}

// writeOne starts a write that finds no room for its token.
func writeOne(c transport.Conn) <-chan error {
	return patience.Start(func() error { return c.WriteFrames(transport.Frame{[]byte("x")}) })
}

// A writer that cannot leave word waits until it can.
func TestFullReactor(t *testing.T) {
	leakcheck.Check(t)
	c, s := crowded(t)
	written := writeOne(c)
	tokens := s.reactor.ring.Consumer()
	require.NoError(t, tokens.Begin())
	got := make([]byte, 2*tokenSize)
	require.NoError(t, tokens.ReadAll(got))
	require.NoError(t, tokens.Commit())
	require.Equal(t, words(5, 5), got)
	require.NoError(t, patience.Finish(t, written))
}

func TestFullReactorThenClose(t *testing.T) {
	leakcheck.Check(t)
	c, _ := crowded(t)
	written := writeOne(c)
	require.NoError(t, c.Close())
	if err := patience.Finish(t, written); err != nil {
		require.ErrorIs(t, err, transport.ErrClosed)
	}
}

func TestFullReactorOfADeadPeer(t *testing.T) {
	leakcheck.Check(t)
	c, s := crowded(t)
	written := writeOne(c)
	require.NoError(t, s.Close())
	if err := patience.Finish(t, written); err != nil {
		require.ErrorIs(t, err, syscall.EPIPE)
	}
}

// Another producer is at work, and for long.
func TestBusyReactor(t *testing.T) {
	leakcheck.Check(t)
	l := listen(t)
	s := newStranger(t, l)
	c := s.shake(t, l, 5, 6)
	other := s.reactor.ring.Producer()
	require.NoError(t, other.Begin())
	written := writeOne(c)
	require.ErrorIs(t, s.reactor.ring.Producer().Begin(), ring.ErrBusy)
	require.NoError(t, other.Cancel())
	require.NoError(t, patience.Finish(t, written))
}
