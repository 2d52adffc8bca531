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

// await blocks until the output contains text, and fails the test after processTimeout.
func (s *shared) await(t *testing.T, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(s.String(), text) }, processTimeout, time.Millisecond, text)
}

// program returns a command, not started yet, that runs this test binary as tpipe with the
// arguments args. It skips the test with -short.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	short.Skip(t, "starts processes")
	path, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(path, args...)
	// With the race detector a program would sleep for a second before it exits.
	cmd.Env = append(os.Environ(), asProgram+"=1", "GORACE=atexit_sleep_ms=0")
	return cmd
}

// start starts tpipe with the arguments args as a process, which is killed at the end of the test
// or after processTimeout. It skips the test with -short.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	return startCommand(t, program(t, args...))
}

// startCommand starts cmd, a command that runs tpipe. The process is killed at the end of the test
// or after processTimeout. If the test fails, its standard error output is logged.
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

// startEcho starts tpipe echo with the arguments args, and returns it and the URL that it prints,
// once it listens.
func startEcho(t *testing.T, args ...string) (*process, string) {
	t.Helper()
	p := start(t, append([]string{"echo"}, args...)...)
	url, ok := strings.CutPrefix(p.line(), "listening on ")
	require.True(t, ok)
	return p, url
}

// line waits for the next line of the process's standard output and returns it without the line
// break. The end of the output ends the test.
func (p *process) line() string {
	p.t.Helper()
	text, err := p.lines.ReadString('\n')
	require.NoError(p.t, err)
	return strings.TrimSuffix(text, "\n")
}

// lineWith reads lines of the process's standard output until one contains text, and returns it.
func (p *process) lineWith(text string) string {
	p.t.Helper()
	for {
		if line := p.line(); strings.Contains(line, text) {
			return line
		}
	}
}

func (p *process) signal(s os.Signal) { require.NoError(p.t, p.cmd.Process.Signal(s)) }

// wait waits until the process exits. It returns the standard output that was not read yet, all of
// the standard error output, and the exit code, which is -1 if a signal ended the process.
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

// stop sends SIGTERM to the process, waits until it exits, and returns all of its standard error
// output. The exit code must be 0.
func (p *process) stop() (stderr string) {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	_, stderr, code := p.wait()
	require.Zero(p.t, code, stderr)
	return stderr
}

// tpipe runs tpipe with the arguments args as a process, and returns its standard output, its
// standard error output and its exit code, which is -1 if a signal ended it.
func tpipe(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return start(t, args...).wait()
}
