package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/rawpeer"
)

// peakMemory returns the peak resident memory of a process in bytes.
func peakMemory(t *testing.T, p *process) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	require.NoError(t, err)
	_, line, ok := strings.Cut(string(text), "VmHWM:")
	require.True(t, ok)
	var kib int
	_, err = fmt.Sscan(line, &kib)
	require.NoError(t, err)
	return kib << 10
}

// flood connects n peers to a URL, each of which sends part of a message of 4 MiB and stops.
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

// Peers that send part of a message and stop do not fill the memory of an echo, which
// continues to serve others.
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
