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

// patience bounds every wait for the peer, so that a peer that hangs fails one
// test with its own words instead of the whole run with a stack dump.
const patience = time.Minute

// Peer is a running tppeer. It has a process group of its own and inherits no
// descriptors but the three standard streams.
type Peer struct {
	t      testing.TB
	args   []string
	cmd    *exec.Cmd
	stdin  io.Closer // tppeer ends when it closes, also if this process dies
	stdout *lines
	stderr *lines
	exited chan struct{}
	err    error // of the exit, valid once exited is closed
	url    string
}

// Start runs tppeer with args (see peer/flags.cc), building it first if needed.
// With --listen among them it returns once the peer listens. The process is
// killed at the end of the test, and what it said on stderr is logged if the
// test failed.
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

// reap waits for the process and for the copying of what it printed.
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

// String is the command, how it ended and what it said on stderr.
func (p *Peer) String() string {
	state := "running"
	select {
	case <-p.exited:
		state = fmt.Sprint(p.cmd.ProcessState)
	default:
	}
	return fmt.Sprintf("tppeer %s (%s)\n%s", strings.Join(p.args, " "), state, p.stderr.rest())
}

// URL is the address to dial, of a peer that listens; if it listens on several
// URLs, they are separated by spaces.
func (p *Peer) URL() string { return p.url }

// Pid is the id of the process.
func (p *Peer) Pid() int { return p.cmd.Process.Pid }

// Signal sends a signal to the process and its group.
func (p *Peer) Signal(s syscall.Signal) {
	_ = syscall.Kill(-p.cmd.Process.Pid, s) // gone already: nothing to do
}

// Kill ends the process as kill -9 does and waits until it is gone.
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

// Stop closes the peer's stdin, upon which it closes its pipes and ends, and
// returns how it ended.
func (p *Peer) Stop() error {
	_ = p.stdin.Close()
	return p.Wait()
}

// Wait waits for the process to end by itself and returns an error that holds
// its stderr if it did not end with exit code 0. A process that does not end
// fails the test.
func (p *Peer) Wait() error {
	p.t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case <-p.exited:
	case <-timeout.C:
		p.t.Fatalf("did not end: %v", p)
	}
	if p.err != nil {
		return fmt.Errorf("%w: %s", p.err, p.stderr.rest())
	}
	return nil
}

// Next decodes the next JSON line that the peer printed into v. It fails the
// test if there is none.
func (p *Peer) Next(v any) {
	p.t.Helper()
	text := p.line()
	if err := json.Unmarshal([]byte(text), v); err != nil {
		p.t.Fatalf("cannot read the line %q (%v) of %v", text, err, p)
	}
}

func (p *Peer) line() string {
	p.t.Helper()
	text, err := p.stdout.next(patience)
	if err != nil {
		if errors.Is(err, io.EOF) {
			<-p.exited
		}
		p.t.Fatalf("no line from the peer (%v): %v", err, p)
	}
	return text
}
