package mux

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Credit from the peer counts even before this end's first message about a stream is recorded as
// sent. A stream that was removed before that is not created again.
func TestCreditBeforeAnnouncement(t *testing.T) {
	s := newSendWindows()
	a := s.open(1)
	s.grant(1, 5)
	n, err := a.claim(10)
	require.NoError(t, err)
	require.Zero(t, n, "the peer has not heard of the stream")
	s.announce(1)
	n, err = a.claim(2 * minWindow)
	require.NoError(t, err)
	require.Equal(t, minWindow+5, n)

	b := s.open(3)
	s.markReset(3)
	s.announce(3)
	_, err = b.claim(1)
	require.Equal(t, errReset, err)

	s.remove(1)
	s.remove(3)
	s.announce(1)
	s.grant(3, 1)
	require.Empty(t, s.streams)
}
