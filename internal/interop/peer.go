package interop

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// maxWait bounds every wait for the peer, so that a peer that hangs fails one test with its own
// output, not the whole run with a stack dump.
const maxWait = time.Minute

// Peer is a running tppeer, a C++ process for one test. It has its own process group and inherits only
// the three standard streams. Only the goroutine of the test may call methods that fail the test.
type Peer struct {
	t      testing.TB
	args   []string
	cmd    *exec.Cmd
	stdin  io.Closer // tppeer exits when it is closed, also if this process dies
	stdout *lines
	stderr *lines
	exited chan struct{}
	err    error // of cmd.Wait, set before exited is closed
	url    string
}

// Start starts the C++ program tppeer with args (see peer/flags.cc) and returns it; it builds the
// program first if needed. If --listen is among args, Start returns once the peer listens. It skips
// or fails the test if the program cannot be built, and fails the test if the program cannot be
// started or does not listen within a minute. At the end of the test the process is killed, and its
// standard error is logged if the test failed.
func Start(t testing.TB, args ...string) *Peer {
	t.Helper()
	p := &Peer{t: t, args: args, stdout: newLines(), stderr: newLines(), exited: make(chan struct{})}
	p.cmd = exec.Command(Build(t), args...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Stdout, p.cmd.Stderr = p.stdout, p.stderr
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdin = stdin
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.reap()
	t.Cleanup(p.end)
	if listens(args) {
		p.url = p.line()
	}
	return p
}

func listens(args []string) bool {
	for _, a := range args {
		if a == "--listen" {
			return true
		}
	}
	return false
}

// reap waits until the process has exited and all its output has been read. It then sets p.err,
// ends p.stdout and p.stderr, and closes p.exited.
func (p *Peer) reap() {
	p.err = p.cmd.Wait()
	p.stdout.close()
	p.stderr.close()
	close(p.exited)
}

func (p *Peer) end() {
	p.Kill()
	if p.t.Failed() {
		p.t.Logf("%v", p)
	}
}

// String returns the command of the peer, whether it is running or how it exited, and its standard
// error so far.
func (p *Peer) String() string {
	state := "running"
	select {
	case <-p.exited:
		state = fmt.Sprint(p.cmd.ProcessState)
	default:
	}
	return fmt.Sprintf("tppeer %s (%s)\n%s", strings.Join(p.args, " "), state, p.stderr.remaining())
}

// URL returns the addresses at which the peer listens, separated by spaces. It returns "" if the
// peer was not started with --listen.
func (p *Peer) URL() string { return p.url }

// Pid returns the process id of the peer, which stays the same after the process has exited.
func (p *Peer) Pid() int { return p.cmd.Process.Pid }

// Signal sends the signal s to the process group of the peer. It ignores errors, such as that the
// group has no process any more.
func (p *Peer) Signal(s syscall.Signal) {
	_ = syscall.Kill(-p.cmd.Process.Pid, s) // fails if it has exited
}

// Kill sends SIGKILL to the process group of the peer, closes its standard input, and waits until
// the process has exited. If the process has exited already, Kill does nothing.
func (p *Peer) Kill() {
	select {
	case <-p.exited:
		return
	default:
	}
	p.Signal(syscall.SIGKILL)
	_ = p.stdin.Close()
	<-p.exited
}

// Stop closes the peer's standard input, which makes the peer close its pipes and exit, and waits
// for that. Like Wait it returns nil if the exit status is 0, otherwise an error with the standard
// error, and fails the test after a minute.
func (p *Peer) Stop() error {
	_ = p.stdin.Close()
	return p.Wait()
}

// Wait blocks until the process has exited. It returns nil if the exit status is 0, and otherwise
// an error with the status and the standard error. It fails the test if the process does not exit
// within a minute.
func (p *Peer) Wait() error {
	p.t.Helper()
	timeout := time.NewTimer(maxWait)
	defer timeout.Stop()
	select {
	case <-p.exited:
	case <-timeout.C:
		p.t.Fatalf("did not exit: %v", p)
	}
	if p.err != nil {
		return fmt.Errorf("%w: %s", p.err, p.stderr.remaining())
	}
	return nil
}

// Next reads the next line that the peer prints, waiting for it if needed, and decodes it as JSON
// into v, as json.Unmarshal does. It fails the test if the peer prints no line within a minute or
// exits first, or if the line cannot be decoded.
func (p *Peer) Next(v any) {
	p.t.Helper()
	text := p.line()
	if err := json.Unmarshal([]byte(text), v); err != nil {
		p.t.Fatalf("cannot read the line %q (%v) of %v", text, err, p)
	}
}

func (p *Peer) line() string {
	p.t.Helper()
	text, err := p.stdout.next(maxWait)
	if err != nil {
		if errors.Is(err, io.EOF) {
			<-p.exited
		}
		p.t.Fatalf("no line from the peer (%v): %v", err, p)
	}
	return text
}
