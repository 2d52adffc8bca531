//go:build !race

package shm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// A round trip of small frames allocates nothing at either end.
func TestRoundTripAllocatesNothing(t *testing.T) {
	withBothKinds(t, func(t *testing.T, tr *Transport) {
		dialled, accepted := connect(t, tr)
		out, in := []transport.Frame{{make([]byte, 8)}}, [][]byte{make([]byte, 8)}
		trip := func() {
			for _, way := range [][2]*conn{{dialled, accepted}, {accepted, dialled}} {
				require.NoError(t, way[0].WriteFrames(out...))
				_, err := way[1].NextFrame()
				require.NoError(t, err)
				require.NoError(t, way[1].ReadBody(in...))
			}
		}
		require.Zero(t, testing.AllocsPerRun(100, trip))
	})
}
