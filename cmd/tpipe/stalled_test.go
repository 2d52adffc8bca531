package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// TestStoppedSenders checks that senders whose processes are stopped during a transfer lose their
// slots and their file names to others. When they continue, they fail with that reason.
func TestStoppedSenders(t *testing.T) {
	for _, dialect := range []string{"native", "compatible"} {
		for _, transport := range []string{"uv", "uv,shm"} {
			t.Run(dialect+" over "+transport, func(t *testing.T) {
				t.Parallel()
				testStoppedSenders(t, "-dialect", dialect, "-transport", transport)
			})
		}
	}
}

func testStoppedSenders(t *testing.T, path ...string) {
	recv, address := startRecv(t, t.TempDir(), append([]string{"-max-senders", "2", "-stall-timeout", "5s"}, path...)...)
	names := []string{"one.safetensors", "two.safetensors"}
	var senders []*process
	for _, name := range names {
		file := filepath.Join(t.TempDir(), name)
		sparseFile(t, file, 128, 16<<20)
		send := start(t, append([]string{"send", "-to", address, file}, path...)...)
		recv.awaitPart(name)
		testwait.StopProcess(t, send.cmd.Process)
		senders = append(senders, send)
	}
	require.Eventually(t, func() bool {
		return len(linesWith(recv.stderr.String(), "stalled: nothing arrived from it for 5s")) == len(names)
	}, processTimeout, time.Millisecond)
	for _, name := range names {
		require.NoFileExists(t, filepath.Join(recv.out(), name))
	}

	for _, name := range names {
		file := filepath.Join(t.TempDir(), name)
		sparseFile(t, file, 1, 10)
		_, stderr, code := tpipe(t, append([]string{"send", "-to", address, file}, path...)...)
		require.Zero(t, code, stderr)
	}
	for _, send := range senders {
		send.resume()
		_, stderr, code := send.wait()
		require.Equal(t, exitFailed, code)
		require.Regexp(t, `^tpipe send: .*the sender .* stalled: nothing arrived from it for 5s.*\n$`, stderr)
	}
	require.Len(t, strings.Split(strings.TrimSpace(recv.stop()), "\n"), 2)
	require.Len(t, safetensorsIn(t, recv.out()), len(names))
}

// awaitPart blocks until the recv p has written a part of the file name to disk, and fails the test
// after processTimeout.
func (p *process) awaitPart(name string) {
	p.t.Helper()
	part := filepath.Join(p.out(), "."+name+".tpipe-part")
	require.Eventually(p.t, func() bool {
		info, err := os.Stat(part)
		return err == nil && hasBlocks(info)
	}, processTimeout, time.Millisecond)
}
