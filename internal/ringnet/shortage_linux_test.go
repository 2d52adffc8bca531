package ringnet_test

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/ringnet"
)

// A bell for which the system has no memory is rung when it has, and the session ends
// where it never does: the peer might wait for that bell for ever.
func TestNoMemoryForABell(t *testing.T) {
	for times, want := range map[int]struct {
		end   error
		heard []byte
	}{
		1:                     {nil, []byte{1, 0}},
		ringnet.Shortages:     {nil, []byte{1, 0}},
		ringnet.Shortages + 1: {unix.ENOBUFS, []byte{}},
	} {
		one, other := sockets(t)
		ring, err := ringnet.Starve(one, times)
		require.NoError(t, err)
		err = ring()
		if want.end == nil {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, want.end)
		}
		heard, err := io.ReadAll(other)
		require.NoError(t, err)
		require.Equal(t, want.heard, heard)
		require.NoError(t, other.Close())
	}
}
