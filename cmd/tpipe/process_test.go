package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
)

// processTimeout bounds the run of a process.
const processTimeout = 2 * time.Minute

// process is a running tpipe.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	lines  *bufio.Reader // stdout
	stderr shared
	late   *time.Timer
	ended  bool
}

// shared holds the output of a process so far.
type shared struct {
	mu   sync.Mutex
	data bytes.Buffer
}

func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.data.Write(p)
}

func (s *shared) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.data.String()
}

// await blocks until text has been printed.
func (s *shared) await(t *testing.T, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(s.String(), text) }, processTimeout, time.Millisecond, text)
}

// program returns a tpipe command.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(path, args...)
	// With the race detector a program would sleep for a second before it exits.
	cmd.Env = append(os.Environ(), asProgram+"=1", "GORACE=atexit_sleep_ms=0")
	return cmd
}

// start starts tpipe as a process, which is killed at the end of the test.
func start(t *testing.T, args ...string) *process {
	short.Skip(t, "starts processes")
	t.Helper()
	return startCommand(t, program(t, args...))
}

// startCommand starts a command that executes tpipe.
func startCommand(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd}
	p.cmd.Stderr = &p.stderr
	stdout, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.lines = bufio.NewReader(stdout)
	require.NoError(t, p.cmd.Start())
	p.late = time.AfterFunc(processTimeout, func() { _ = p.cmd.Process.Kill() })
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("tpipe %s: %v\n%s", strings.Join(cmd.Args[1:], " "), p.cmd.ProcessState, p.stderr.String())
		}
	})
	return p
}

// startEcho runs an echo and returns the URL it printed.
func startEcho(t *testing.T, args ...string) (*process, string) {
	t.Helper()
	p := start(t, append([]string{"echo"}, args...)...)
	url, ok := strings.CutPrefix(p.line(), "listening on ")
	require.True(t, ok)
	return p, url
}

// line returns the next line of stdout.
func (p *process) line() string {
	p.t.Helper()
	text, err := p.lines.ReadString('\n')
	require.NoError(p.t, err)
	return strings.TrimSuffix(text, "\n")
}

// lineWith reads stdout up to the next line that contains text.
func (p *process) lineWith(text string) string {
	p.t.Helper()
	for {
		if line := p.line(); strings.Contains(line, text) {
			return line
		}
	}
}

func (p *process) signal(s os.Signal) { require.NoError(p.t, p.cmd.Process.Signal(s)) }

// resume continues a process that was stopped, unless it has been killed.
func (p *process) resume() { _ = p.cmd.Process.Signal(syscall.SIGCONT) }

// wait returns the rest of stdout, stderr and the exit code, -1 after a signal.
func (p *process) wait() (stdout, stderr string, code int) {
	p.t.Helper()
	rest, err := io.ReadAll(p.lines)
	require.NoError(p.t, err)
	err = p.cmd.Wait()
	p.ended = true
	require.True(p.t, p.late.Stop(), "tpipe hung")
	if _, ok := errors.AsType[*exec.ExitError](err); !ok {
		require.NoError(p.t, err)
	}
	return string(rest), p.stderr.String(), p.cmd.ProcessState.ExitCode()
}

func (p *process) kill() {
	if p.ended {
		return
	}
	_ = p.cmd.Process.Kill()
	_, _ = io.Copy(io.Discard, p.lines)
	_ = p.cmd.Wait()
	p.late.Stop()
	p.ended = true
}

// stop terminates a process with SIGTERM and requires exit code 0.
func (p *process) stop() (stderr string) {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	_, stderr, code := p.wait()
	require.Zero(p.t, code, stderr)
	return stderr
}

// tpipe runs a command to its end.
func tpipe(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return start(t, args...).wait()
}
