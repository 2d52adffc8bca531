package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

const largeName = "large.safetensors"

// sendLarge starts a tpipe send of a large file to recv at address, and returns it when recv is
// writing the file. The sender is stopped by a signal, so that the transfer cannot end before the
// test calls resume.
func sendLarge(t *testing.T, recv *process, address string, flags ...string) *process {
	t.Helper()
	path := filepath.Join(t.TempDir(), largeName)
	sparseFile(t, path, 128, 16<<20)
	send := start(t, append([]string{"send", "-to", address, path}, flags...)...)
	recv.lineWith("1 file of 2.0 GiB from tpipe send")
	recv.awaitPart(largeName)
	testwait.StopProcess(t, send.cmd.Process)
	return send
}

// out returns the value of the flag -out of p, the output directory of a recv, or "" without that
// flag.
func (p *process) out() string {
	for i, arg := range p.cmd.Args {
		if arg == "-out" {
			return p.cmd.Args[i+1]
		}
	}
	return ""
}

// TestSenderCut checks that a sender that is killed or interrupted during a transfer leaves only a
// part file at the receiver, which reports it and serves the next sender.
func TestSenderCut(t *testing.T) {
	for what, c := range map[string]struct {
		signal os.Signal
		code   int
		says   string
		heard  string
	}{
		"killed":      {syscall.SIGKILL, -1, "", "lost the peer"},
		"interrupted": {os.Interrupt, exitInterrupted, "tpipe send: interrupted\n", "interrupt"},
		"terminated":  {syscall.SIGTERM, exitInterrupted, "tpipe send: interrupted\n", "terminated"},
	} {
		for _, dialect := range []string{"native", "compatible"} {
			t.Run(what+" "+dialect, func(t *testing.T) {
				recv, address := startRecv(t, t.TempDir(), "-dialect", dialect)
				send := sendLarge(t, recv, address, "-dialect", dialect)
				send.signal(c.signal)
				send.resume()
				_, stderr, code := send.wait()
				require.Equal(t, c.code, code, stderr)
				require.Equal(t, c.says, stderr)

				_, stderr, code = tpipe(t, "send", "-to", address, "-dialect", dialect, "testdata")
				require.Zero(t, code, stderr)
				log := recv.stop()
				require.Len(t, linesWith(log, "tpipe recv: "), 1, log)
				require.Contains(t, log, c.heard)
				recv.removePart(largeName)
				require.Len(t, safetensorsIn(t, recv.out()), 1)
			})
		}
	}
}

// TestReceiverCut checks that a receiver that is interrupted during a transfer exits with
// exitInterrupted, sends the reason to the sender, and leaves only a part file.
func TestReceiverCut(t *testing.T) {
	for _, flags := range []string{"", "-once"} {
		for _, dialect := range []string{"native", "compatible"} {
			t.Run(dialect+flags, func(t *testing.T) {
				recv, address := startRecv(t, t.TempDir(), append(strings.Fields(flags), "-dialect", dialect)...)
				send := sendLarge(t, recv, address, "-dialect", dialect)
				recv.signal(os.Interrupt)
				send.resume()
				_, stderr, code := recv.wait()
				require.Equal(t, exitInterrupted, code, stderr)
				require.Contains(t, stderr, "interrupted")
				recv.removePart(largeName)
				require.Empty(t, safetensorsIn(t, recv.out()))
				_, stderr, code = send.wait()
				require.Equal(t, exitFailed, code)
				require.Contains(t, stderr, "the receiver reports: interrupt")
				require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
			})
		}
	}
}

func TestReceiverInterruptedIdle(t *testing.T) {
	recv, _ := startRecv(t, t.TempDir())
	require.Empty(t, recv.stop())
	recv, _ = startRecv(t, t.TempDir(), "-once")
	recv.signal(os.Interrupt)
	_, stderr, code := recv.wait()
	require.Equal(t, exitInterrupted, code)
	require.Equal(t, "tpipe recv: interrupted\n", stderr)
}

// TestReceiverKilled checks that a receiver that is killed leaves a part file, and that the next
// transfer of that name replaces it.
func TestReceiverKilled(t *testing.T) {
	recv, address := startRecv(t, t.TempDir())
	send := sendLarge(t, recv, address)
	recv.kill()
	send.resume()
	_, stderr, code := send.wait()
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "lost the peer")
	left, err := os.ReadDir(recv.out())
	require.NoError(t, err)
	require.Len(t, left, 1)
	require.Equal(t, "."+largeName+".tpipe-part", left[0].Name())

	small := filepath.Join(t.TempDir(), largeName)
	sparseFile(t, small, 1, 10)
	again, address := startRecv(t, recv.out())
	_, stderr, code = tpipe(t, "send", "-to", address, small)
	require.Zero(t, code, stderr)
	require.Empty(t, again.stop())
	require.Len(t, safetensorsIn(t, recv.out()), 1)
}

// removePart removes the part file of the file name, if p, a recv that is not receiving it any
// more, has kept one.
func (p *process) removePart(name string) {
	p.t.Helper()
	if err := os.Remove(filepath.Join(p.out(), "."+name+".tpipe-part")); !os.IsNotExist(err) {
		require.NoError(p.t, err)
	}
}

// limitedShell returns a command that runs tpipe with args in a shell that limits the size of
// files. It skips the test if there is no shell.
func limitedShell(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Skipf("no shell: %v", err)
	}
	inner := program(t, args...)
	cmd := exec.Command(shell, append([]string{"-c", `ulimit -f 2000 && exec "$0" "$@"`, inner.Path}, args...)...)
	cmd.Env = inner.Env
	return cmd
}
