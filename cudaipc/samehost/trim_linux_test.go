package samehost_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// Trim frees a segment that two other processes have mapped when both have ended, and not before, although the tensor in
// it was freed.
func TestTrimKeepsMappedMemory(t *testing.T) {
	p := direct.start(t, nil, func(n *node) {
		s := n.stream(gpu(0))
		if n.Rank == 1 {
			n.importUntilKilled(s)
		}
		n.sendToBoth(s)
		freed := func() bool {
			runtime.GC()
			stats, err := n.kind.Stats(gpu(0))
			return err == nil && stats.InUse == 0
		}
		require.Eventually(n, freed, testwait.Limit, time.Millisecond)
		require.NoError(n, s.Synchronize(n.Context()))
		held, frees := n.held(), n.control.Calls("cuMemFree_v2")
		require.Positive(n, held)
		require.NoError(n, n.kind.Trim(gpu(0)))
		require.Equal(n, []int{held, frees}, []int{n.held(), n.control.Calls("cuMemFree_v2")}, "memory that is mapped was freed")

		n.Send("kept")
		require.NoError(n, n.WaitFor("killed"))
		require.NoError(n, n.kind.Trim(gpu(0)))
		require.Equal(n, []int{0, frees + 1}, []int{n.held(), n.control.Calls("cuMemFree_v2")}, "memory that no process has mapped was kept")
	})
	require.Equal(t, "mapped", p.ReadLine(1))
	p.Kill(1)
	p.Send(0, "another")
	p.replace()
	require.Equal(t, "mapped", p.ReadLine(1))
	p.Send(0, "mapped")
	require.Equal(t, "kept", p.ReadLine(0))
	p.Kill(1)
	p.Send(0, "killed")
	p.Send(0, alone)
	p.Wait()
}

// sendToBoth sends a tensor to the second process, and to the one that replaces it, and waits until that has mapped it.
func (n *node) sendToBoth(s *cudaipc.Stream) {
	b := n.filled(tensorSize, s, 7)
	n.write(gpu(0), b)
	require.NoError(n, n.WaitFor("another"))
	_ = n.Close() // the other process was killed
	n.accept()
	n.write(gpu(0), b)
	require.NoError(n, n.WaitFor("mapped"))
}

// importUntilKilled receives a tensor and keeps its memory mapped.
func (n *node) importUntilKilled(s *cudaipc.Stream) {
	n.requireFilled(n.read(s)[0], 7)
	require.Equal(n, 1, n.control.Calls("cuIpcOpenMemHandle_v2"))
	require.Zero(n, n.control.Calls("cuIpcCloseMemHandle"))
	n.Send("mapped")
	require.NoError(n, n.WaitFor("nothing")) // until it is killed
}
