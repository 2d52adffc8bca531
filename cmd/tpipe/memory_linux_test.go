package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/rawpeer"
)

// peakMemory returns the largest number of bytes of resident memory that p has had so far.
func peakMemory(t *testing.T, p *process) int {
	t.Helper()
	bytes, ok := tryPeakMemory(p)
	require.True(t, ok)
	return bytes
}

// tryPeakMemory returns what peakMemory returns, and true, or 0 and false if p has exited.
func tryPeakMemory(p *process) (bytes int, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, false
	}
	_, line, ok := strings.Cut(string(text), "VmHWM:")
	if !ok {
		return 0, false // a process that has exited and was not waited for
	}
	var kib int
	_, err = fmt.Sscan(line, &kib)
	return kib << 10, err == nil
}

// flood connects n peers to url. Each sends most of a message of 4 MiB and stops. hangUp closes the
// connections.
func flood(t *testing.T, url string, n int) (hangUp func()) {
	t.Helper()
	part := rawpeer.Message(4 << 20)[:4_000_000]
	var peers []*rawpeer.Peer
	var sending sync.WaitGroup
	for range n {
		peer, err := rawpeer.Dial(url)
		require.NoError(t, err)
		peers = append(peers, peer)
		sending.Go(func() { peer.Send(part) })
	}
	sending.Wait()
	return func() {
		for _, peer := range peers {
			peer.Close()
		}
	}
}

// TestEchoAmongUnadmittedPeers checks that many peers that send part of a message and stop do not
// fill the memory of an echo, and that the echo serves another peer while they are connected.
func TestEchoAmongUnadmittedPeers(t *testing.T) {
	unadmitted := race.Pick(200, 30)
	p, url := startEcho(t, "-memory", "64MiB", "-limit", "8MiB")
	hangUp := flood(t, url, unadmitted)
	if !race.Enabled { // the race detector multiplies the memory of a process
		require.Less(t, peakMemory(t, p), 300<<20, "they have sent %d MB", unadmitted*4)
	}
	out, stderr, code := tpipe(t, "ping", "-to", url, "-size", "256KiB", "-count", "20", "-check")
	require.Zero(t, code, stderr)
	require.NotEmpty(t, out)
	hangUp()
	require.Contains(t, p.stop(), "UnadmittedBytes")
}

func TestRecvAmongUnadmittedPeers(t *testing.T) {
	unadmitted := race.Pick(200, 40)
	dir, folder := t.TempDir(), weightsFolder(t)
	p, address := startRecv(t, dir)
	hangUp := flood(t, address, unadmitted)
	if !race.Enabled {
		require.Less(t, peakMemory(t, p), 350<<20, "they have sent %d MB", unadmitted*4)
	}
	_, stderr, code := tpipe(t, "send", "-to", address, folder)
	require.Zero(t, code, stderr)
	hangUp()
	p.signal(syscall.SIGTERM)
	_, stderr, code = p.wait()
	require.Contains(t, []int{0, 130}, code, "130 if one that has hung up is still being served")
	require.Contains(t, stderr, "UnadmittedBytes")
}

// TestMemoryOfOneLargeTensor checks that neither end of a transfer takes much more memory than
// -memory for one tensor that is larger.
func TestMemoryOfOneLargeTensor(t *testing.T) {
	const size = 192 << 20
	path := filepath.Join(t.TempDir(), largeName)
	sparseFile(t, path, 1, size)
	recv, address := startRecv(t, t.TempDir(), "-memory", "32MiB")
	send := start(t, "send", "-to", address, "-memory", "32MiB", path)
	peak := 0
	require.Eventually(t, func() bool {
		if now, ok := tryPeakMemory(send); ok {
			peak = now
			return false
		}
		return true
	}, processTimeout, time.Millisecond)
	_, stderr, code := send.wait()
	require.Zero(t, code, stderr)
	t.Logf("peak: send %d MiB, recv %d MiB", peak>>20, peakMemory(t, recv)>>20)
	if !race.Enabled { // the race detector multiplies the memory of a process
		require.Positive(t, peak)
		require.Less(t, peak, 96<<20)
		require.Less(t, peakMemory(t, recv), 96<<20)
	}
	require.Empty(t, recv.stop())
}
