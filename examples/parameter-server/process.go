package main

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
)

// process is a worker that startAll has started.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	lines *bufio.Reader // stdout
}

// start starts the worker with that name as a process.
func start(name, rendezvous string, args ...string) (*process, error) {
	c := exec.Command(os.Args[0], append([]string{"-name", name, "-rendezvous", rendezvous}, args...)...)
	c.Stderr = os.Stderr
	stdin, err := c.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &process{c, stdin, bufio.NewReader(stdout)}, c.Start()
}

// print prints the rest of the output of a process, and waits until it has ended.
func (p *process) print(out io.Writer) error {
	_, err := io.Copy(out, p.lines)
	return errors.Join(err, p.cmd.Wait())
}
