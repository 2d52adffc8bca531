package agent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A shift is passed on for what takes long, unless somebody looks for his answer in it, or
// the last one to take it over was late.
func TestPassingOn(t *testing.T) {
	r := new(Request)
	s := new(shift)
	s.apart(r)
	require.Same(t, r, s.next)

	late := &shift{pass: pass{at: time.Now().Add(-time.Minute)}}
	late.pass.begun()
	for range stayFor {
		require.False(t, late.pass.allowed())
	}
	require.True(t, late.pass.allowed())

	inTime := &shift{pass: pass{at: time.Now().Add(time.Minute)}}
	inTime.pass.begun()
	require.True(t, inTime.pass.allowed())
}
