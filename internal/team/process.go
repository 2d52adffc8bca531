package team

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"syscall"
	"time"
)

// lastWords is how long a process has to print its stacks.
const lastWords = 5 * time.Second

// process is a member as the test sees it.
type process struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	lines  chan string
	done   chan struct{} // closed when ended is set
	ended  error
	errors bytes.Buffer // read when done is closed
	killed bool
}

// backlog is how many lines a member may say that nobody has read.
const backlog = 1 << 10

func startProcess(pattern string, env []string) (*process, error) {
	cmd := exec.Command(os.Args[0], "-test.run="+pattern, "-test.count=1", "-test.timeout="+(2*Limit).String())
	cmd.Env = env
	p := &process{cmd: cmd, lines: make(chan string, backlog), done: make(chan struct{})}
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
	go p.listen(out)
	return p, nil
}

// listen takes in what the process says, until it has ended.
func (p *process) listen(out io.Reader) {
	from := bufio.NewScanner(out)
	for from.Scan() {
		// What testing itself prints is not quoted.
		if line, err := strconv.Unquote(from.Text()); err == nil {
			p.lines <- line
		}
	}
	close(p.lines)
	if err := p.cmd.Wait(); err != nil {
		p.ended = fmt.Errorf("%w, having said:\n%s", err, &p.errors)
	}
	close(p.done)
}

func (p *process) tell(line string) error {
	_, err := io.WriteString(p.in, strconv.Quote(line)+"\n")
	return err
}

func (p *process) kill() {
	p.killed = true
	_ = p.cmd.Process.Kill() // it may have ended
}

func (p *process) stop() error   { return p.cmd.Process.Signal(syscall.SIGSTOP) }
func (p *process) resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

func (p *process) hasEnded() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// askWhy has a process that should have ended print what it waits for.
func (p *process) askWhy() {
	_ = p.resume()
	_ = p.cmd.Process.Signal(syscall.SIGQUIT)
}

// finish returns when the process has ended.
func (p *process) finish() {
	patience := time.AfterFunc(lastWords, p.kill)
	defer patience.Stop()
	for range p.lines { // so that it can say all it wants
	}
	<-p.done
}

func quote(text string) string { return regexp.QuoteMeta(text) }
