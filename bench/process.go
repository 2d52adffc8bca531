package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// Program says how to start a program.
type Program struct {
	Path string
	Args []string
	Env  []string // beside that of this process
}

// farewell is how long a process may take to end once it has been asked to.
const farewell = 30 * time.Second

// maxLine bounds what a process may say in one line: the samples of the largest
// measurement.
const maxLine = 256 << 20

// process is a running program that talks in lines. It ends when its stdin
// does, and is killed when the ctx it was started with ends.
type process struct {
	name   string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Scanner
	stderr bytes.Buffer // to be read when it has ended
	end    func() error
}

func startProcess(ctx context.Context, name string, program Program) (*process, error) {
	p := &process{name: name, cmd: exec.CommandContext(ctx, program.Path, program.Args...)}
	p.cmd.Env = append(os.Environ(), program.Env...)
	p.cmd.Stderr = &p.stderr
	p.cmd.WaitDelay = farewell
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.stdout = bufio.NewScanner(stdout)
	p.stdout.Buffer(nil, maxLine)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.end = sync.OnceValue(p.wait)
	return p, nil
}

// wait asks the process to end, and kills it if it does not.
func (p *process) wait() error {
	_ = p.stdin.Close()
	late := time.AfterFunc(farewell, func() { _ = p.cmd.Process.Kill() })
	err := p.cmd.Wait()
	if !late.Stop() {
		err = fmt.Errorf("it did not end in %v", farewell)
	}
	if err != nil {
		return &ProcessError{Name: p.name, Stderr: strings.TrimSpace(p.stderr.String()), Err: err}
	}
	return nil
}

// blame is the error of several that explains the others: what a measurement
// failed of, then how its processes ended. One that was killed broke the pipe of
// the other; else what came first counts.
func blame(failed error, ended ...error) error {
	for _, err := range ended {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() < 0 {
			return err
		}
	}
	how := cmp.Or(ended...)
	if errors.Is(failed, pipe.ErrPeerLost) {
		return cmp.Or(how, failed)
	}
	return cmp.Or(failed, how)
}

// line waits for the next line.
func (p *process) line() (string, error) {
	if p.stdout.Scan() {
		return p.stdout.Text(), nil
	}
	if err := p.stdout.Err(); err != nil {
		return "", fmt.Errorf("%w: %s: %w", ErrProtocol, p.name, err)
	}
	return "", p.gone()
}

// gone is the error of a process that should go on and does not.
func (p *process) gone() error {
	return cmp.Or(p.end(), error(&ProcessError{Name: p.name, Err: io.ErrUnexpectedEOF}))
}

// decode reads the next line as JSON.
func (p *process) decode(v any) error {
	text, err := p.line()
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(text), v); err != nil {
		return fmt.Errorf("%w: process %s printed %.80q: %w", ErrProtocol, p.name, text, err)
	}
	return nil
}

// ask sends a line and reads the next one.
func (p *process) ask(line, answer any) error {
	if err := p.tell(line); err != nil {
		return err
	}
	return p.decode(answer)
}

// tell sends v as a line of JSON.
func (p *process) tell(v any) error {
	if json.NewEncoder(p.stdin).Encode(v) != nil { // nobody reads
		return p.gone()
	}
	return nil
}
