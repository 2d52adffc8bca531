package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// child is the receiving process as the sending one sees it.
type child struct {
	cmd    *exec.Cmd
	stdin  io.Closer    // the receiver ends when this does
	stderr bytes.Buffer // to be read when it has ended
	url    string       // where it listens
	stop   func() error // says how it ended
}

// farewell is how long a child may take to end once it has been asked to.
const farewell = 10 * time.Second

// startReceiver starts this program once more, as the receiver, and waits until
// it listens. It is killed when ctx ends.
func startReceiver(ctx context.Context) (*child, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.CommandContext(ctx, program, receiverName)}
	c.cmd.Stderr = &c.stderr
	c.cmd.WaitDelay = farewell
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	c.stop = sync.OnceValue(c.end)
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("the second process did not start to listen: %w", cmp.Or(c.stop(), err))
	}
	c.url = strings.TrimSpace(line)
	return c, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// end asks the process to end, and kills it if it does not.
func (c *child) end() error {
	_ = c.stdin.Close()
	late := time.AfterFunc(farewell, func() { _ = c.cmd.Process.Kill() })
	defer late.Stop()
	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("second process: %w: %s", err, bytes.TrimSpace(c.stderr.Bytes()))
	}
	return nil
}
