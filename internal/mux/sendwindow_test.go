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
	s.update(1, func(a *sendWindow) { a.announced = true })
	n, err = a.claim(2 * minWindow)
	require.NoError(t, err)
	require.Equal(t, minWindow+5, n)

	b := s.open(3)
	s.update(3, func(a *sendWindow) { a.reset = true })
	s.update(3, func(a *sendWindow) { a.announced = true })
	_, err = b.claim(1)
	require.Equal(t, errReset, err)

	s.remove(1)
	s.remove(3)
	s.update(1, func(a *sendWindow) { a.announced = true })
	s.grant(3, 1)
	require.Empty(t, s.streams)
}
