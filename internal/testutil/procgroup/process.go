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

func startProcess(pattern string, env []string, attr *syscall.SysProcAttr) (*process, error) {
	cmd := exec.Command(os.Args[0], "-test.run="+pattern, "-test.count=1", "-test.timeout="+(2*Limit).String())
	cmd.Env, cmd.SysProcAttr = env, attr
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

// readLines reads out, the standard output of the process, and queues the lines that the member
// sends in p.lines; it skips others, which package testing prints. When out ends it closes p.lines,
// waits until the process has exited, sets p.ended and closes p.done.
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

func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// requestStacks resumes the process if it is stopped, and sends it SIGQUIT, which makes a Go
// program print the stacks of its goroutines to standard error and exit. It does not wait for that.
func (p *process) requestStacks() {
	_ = p.resume()
	_ = p.cmd.Process.Signal(syscall.SIGQUIT)
}

// finish blocks until the process has exited, and discards the lines that it sends, because a full
// queue would block it. If the process runs for longer than stackTimeout, finish kills it.
func (p *process) finish() {
	kill := time.AfterFunc(stackTimeout, p.kill)
	defer kill.Stop()
	for range p.lines { // a full queue would block the process
	}
	<-p.done
}
