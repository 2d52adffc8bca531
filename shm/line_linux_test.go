package shm

import (
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// The memory for a peer is made while another one has its turn: only the last word of
// a handshake is said to one after the other.
func TestMemoryIsMadeOutOfLine(t *testing.T) {
	leakcheck.Check(t)
	l := listen(t, func(tr *Transport) { tr.patience = time.Hour })
	newStranger(t, l).shake(t, l, 0, 1) // with what all peers share
	line := &l.(*listener).inLine
	line.Lock()
	unlock := sync.OnceFunc(line.Unlock)
	defer unlock()

	strangers := []*stranger{newStranger(t, l), newStranger(t, l), newStranger(t, l)}
	_, before := inUse(t)
	for _, s := range strangers {
		s.greet(t, words(0, 1), s.files()...)
	}
	const each = 4 + 2 // two rings of the peer, and one of this end
	made := func() bool {
		_, now := inUse(t)
		return now-before == each*len(strangers)
	}
	require.Eventually(t, made, patience.Limit, time.Millisecond)
	unlock()
	for range strangers {
		c, err := l.Accept(t.Context())
		require.NoError(t, err)
		require.NoError(t, c.WriteFrames(transport.Frame{[]byte("welcome")}))
		require.NoError(t, c.Close())
	}
}

// For a peer that has given up there is no memory; one that has only said all that it
// has to say is there still.
func TestNoMemoryForWhoHasGone(t *testing.T) {
	leakcheck.Check(t)
	s, h := greeted(t)
	require.NoError(t, s.CloseWrite())
	require.NoError(t, h.meet())
	require.NotNil(t, h.mine.data)

	s, h = greeted(t)
	require.NoError(t, s.Close())
	require.ErrorIs(t, h.meet(), io.ErrUnexpectedEOF)
	require.Nil(t, h.mine.data)
}

// greeted is a stranger that has said what it has to, and the handshake with it.
func greeted(t *testing.T) (*stranger, *handshake) {
	t.Helper()
	here, there, err := socketPair()
	require.NoError(t, err)
	h := newHandshake(New(), here)
	t.Cleanup(h.undo)
	s := strangerAt(t, there)
	s.greet(t, words(0, 1), s.files()...)
	return s, h
}
