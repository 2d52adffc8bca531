package mux

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What the peer says of a stream counts although this end's first word about it has only
// just left; and a stream that was left before that comes back to nobody's memory.
func TestWordsBeforeIntroduction(t *testing.T) {
	s := newSending()
	a := s.enter(1)
	s.grant(1, 5)
	n, err := a.take(10)
	require.NoError(t, err)
	require.Zero(t, n, "the peer has not heard of the stream")
	s.introduce(1)
	n, err = a.take(2 * minWindow)
	require.NoError(t, err)
	require.Equal(t, minWindow+5, n)

	b := s.enter(3)
	s.end(3)
	s.introduce(3)
	_, err = b.take(1)
	require.Equal(t, errReset, err)

	s.leave(1)
	s.leave(3)
	s.introduce(1)
	s.grant(3, 1)
	require.Empty(t, s.streams)
}
