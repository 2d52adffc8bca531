package procgroup

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

// stackTimeout is how long a process may take to print its stacks and exit.
const stackTimeout = 5 * time.Second

// maxQueuedLines is how many unread lines are queued in each direction.
const maxQueuedLines = 1 << 10

// process is a member of the group, as seen in the process of the test.
type process struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	lines  chan string   // closed at the end of standard output
	done   chan struct{} // closed after ended is set
	ended  error
	errors bytes.Buffer // standard error, complete once done is closed
	killed bool
}

func startProcess(pattern string, env []string) (*process, error) {
	cmd := exec.Command(os.Args[0], "-test.run="+pattern, "-test.count=1", "-test.timeout="+(2*Limit).String())
	cmd.Env = env
	p := &process{cmd: cmd, lines: make(chan string, maxQueuedLines), done: make(chan struct{})}
	cmd.Stderr = &p.errors
	var err error
	if p.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go p.readLines(out)
	return p, nil
}

// readLines queues the lines that the member sends, until its standard output ends; then it waits for
// the exit of the process, sets ended and closes done. It runs on its own goroutine.
func (p *process) readLines(out io.Reader) {
	scanner := bufio.NewScanner(out)
	for scanner.Scan() {
		// Lines that package testing prints are not quoted, and are skipped.
		if line, err := strconv.Unquote(scanner.Text()); err == nil {
			p.lines <- line
		}
	}
	close(p.lines)
	if err := p.cmd.Wait(); err != nil {
		p.ended = fmt.Errorf("%w, standard error:\n%s", err, &p.errors)
	}
	close(p.done)
}

func (p *process) send(line string) error {
	_, err := io.WriteString(p.in, strconv.Quote(line)+"\n")
	return err
}

func (p *process) kill() {
	p.killed = true
	_ = p.cmd.Process.Kill() // fails if it has exited
}

func (p *process) stop() error   { return p.cmd.Process.Signal(syscall.SIGSTOP) }
func (p *process) resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// requestStacks makes the process, even if it is stopped, print the stacks of its goroutines to
// standard error and exit. It does not wait for that.
func (p *process) requestStacks() {
	_ = p.resume()
	_ = p.cmd.Process.Signal(syscall.SIGQUIT)
}

// finish discards the output of the process and blocks until it has exited. It kills the process after
// stackTimeout.
func (p *process) finish() {
	kill := time.AfterFunc(stackTimeout, p.kill)
	defer kill.Stop()
	for range p.lines { // a full queue would block the process
	}
	<-p.done
}
