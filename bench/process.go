package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// Program says how to start a program.
type Program struct {
	Path string
	Args []string
	Env  []string // beside that of this process
}

// farewell is how long a process may take to end once it has been asked to.
const farewell = 5 * time.Second

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
	defer late.Stop()
	if err := p.cmd.Wait(); err != nil {
		return &ProcessError{Name: p.name, Stderr: strings.TrimSpace(p.stderr.String()), Err: err}
	}
	return nil
}

// line waits for the next line.
func (p *process) line() (string, error) {
	if p.stdout.Scan() {
		return p.stdout.Text(), nil
	}
	if err := p.stdout.Err(); err != nil {
		return "", fmt.Errorf("%w: %s: %w", ErrProtocol, p.name, err)
	}
	if err := p.end(); err != nil {
		return "", err
	}
	return "", &ProcessError{Name: p.name, Err: io.ErrUnexpectedEOF}
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

// tell sends v as a line of JSON.
func (p *process) tell(v any) error {
	if err := json.NewEncoder(p.stdin).Encode(v); err != nil {
		return fmt.Errorf("process %s: %w", p.name, err)
	}
	return nil
}
