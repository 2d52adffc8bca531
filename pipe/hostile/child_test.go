package hostile_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// The environment of a child process: which part it plays, in which dialect, and
// the url of the victim.
const (
	childPart    = "HOSTILE_CHILD"
	childDialect = "HOSTILE_DIALECT"
	childURL     = "HOSTILE_URL"
)

// much is more than all socket buffers of a connection hold.
const much = 64 << 20

// playChild is the main function of a child process.
func playChild(part string) int {
	if part == "linger" {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the test
		return 0
	}
	if err := perform(part); err != nil {
		fmt.Fprintln(os.Stderr, "child", part+":", err)
		return 1
	}
	return 0
}

func perform(part string) error {
	if part == "guess" {
		return tryGuesses()
	}
	ctx := context.Background()
	o := options("child")
	o.Dialect = os.Getenv(childDialect)
	c, err := pipe.New(o)
	if err != nil {
		return err
	}
	p, err := c.Dial(ctx, os.Getenv(childURL))
	if err != nil {
		return err
	}
	defer c.Close()
	switch part {
	case "echo":
		return echo(ctx, p)
	case "chat":
		return chat(ctx, p)
	case "send payload", "send tensor":
		return errors.Join(linger(), p.Write(ctx, bigMessage(part)))
	case "receive":
		_, err := p.Next(ctx)
		err = errors.Join(err, linger())
		fmt.Println("described") // and never read
		<-p.Done()
		return err
	}
	return fmt.Errorf("no such part")
}

// linger starts a child of the child. Were one of the pipe's descriptors to
// leak into it, the connection would outlive its owner.
func linger() error {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childPart+"=linger")
	cmd.Stdin = os.Stdin
	return cmd.Start()
}

func bigMessage(part string) *pipe.Message {
	if part == "send payload" {
		return &pipe.Message{Payloads: []pipe.Payload{{Data: make([]byte, much)}}}
	}
	return &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(make([]byte, much)), TargetDevice: device.CPU()}}}
}

// chat sends small messages without end.
func chat(ctx context.Context, p *pipe.Pipe) error {
	m := &pipe.Message{Payloads: []pipe.Payload{{Data: make([]byte, 1000)}}}
	for {
		if err := p.Write(ctx, m); err != nil {
			return err
		}
	}
}

// echo sends back the payloads of each message until the peer closes.
func echo(ctx context.Context, p *pipe.Pipe) error {
	for {
		in, err := p.Next(ctx)
		if errors.Is(err, pipe.ErrPeerClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		a := pipe.NewAllocation(in.Descriptor())
		if err := in.Read(ctx, a); err != nil {
			return err
		}
		m := &pipe.Message{}
		for _, data := range a.Payloads {
			m.Payloads = append(m.Payloads, pipe.Payload{Data: data})
		}
		if err := p.Write(ctx, m); err != nil {
			return err
		}
	}
}

// child is a process with a pipe to the victim.
type child struct {
	cmd  *exec.Cmd
	out  *bufio.Reader
	pipe *pipe.Pipe // the victim's end
}

// spawn starts a child process and accepts its pipe.
func (v *victim) spawn(t *testing.T, dialect, part string) *child {
	t.Helper()
	program, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), childPart+"="+part, childDialect+"="+dialect, childURL+"="+v.url())
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	c := &child{cmd: cmd, out: bufio.NewReader(out)}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // a child that was killed says so
	})
	c.pipe, err = v.listener.Accept(t.Context())
	require.NoError(t, err)
	return c
}

func (c *child) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	require.NoError(t, c.cmd.Process.Signal(s))
}

// hears waits for a line of the child.
func (c *child) hears(t testing.TB, want string) {
	t.Helper()
	line, err := c.out.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, want+"\n", line)
}
