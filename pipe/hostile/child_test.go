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

// The environment variables of a child process: its role, its dialect, and the URL of the victim.
const (
	childRole    = "HOSTILE_CHILD"
	childDialect = "HOSTILE_DIALECT"
	childURL     = "HOSTILE_URL"
)

// hugeSize is more bytes than the socket buffers of a connection hold.
const hugeSize = 64 << 20

// runChild runs the named role in a child process of a test and returns the exit status of the
// process: 0 after success, 1 after an error, which it writes to the standard error output.
func runChild(role string) int {
	if role == "linger" {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the end of the test
		return 0
	}
	if err := runRole(role); err != nil {
		fmt.Fprintln(os.Stderr, "child", role+":", err)
		return 1
	}
	return 0
}

func runRole(role string) error {
	if role == "guess" {
		return tryGuesses()
	}
	ctx := context.Background()
	o := options("child")
	o.Dialect = pipe.Dialect(os.Getenv(childDialect))
	c, err := pipe.New(o)
	if err != nil {
		return err
	}
	p, err := c.Dial(ctx, os.Getenv(childURL))
	if err != nil {
		return err
	}
	defer c.Close()
	switch role {
	case "echo":
		return echo(ctx, p)
	case "chat":
		return sendForever(ctx, p)
	case "send payload", "send tensor":
		return errors.Join(startGrandchild(), p.Write(ctx, bigMessage(role)))
	case "receive":
		_, err := p.Next(ctx)
		err = errors.Join(err, startGrandchild())
		fmt.Println("described") // the message is never read
		<-p.Done()
		return err
	}
	return fmt.Errorf("unknown role")
}

// startGrandchild starts a process that lives until the end of the test, as a child of the child,
// and does not wait for it. If it inherited a descriptor of the pipe, the connection would not end
// with the child.
func startGrandchild() error {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childRole+"=linger")
	cmd.Stdin = os.Stdin
	return cmd.Start()
}

func bigMessage(role string) *pipe.Message {
	if role == "send payload" {
		return &pipe.Message{Payloads: []pipe.Payload{{Data: make([]byte, hugeSize)}}}
	}
	return &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(make([]byte, hugeSize)), TargetDevice: device.CPU()}}}
}

// sendForever writes small messages to p until a write fails, and returns that error.
func sendForever(ctx context.Context, p *pipe.Pipe) error {
	m := &pipe.Message{Payloads: []pipe.Payload{{Data: make([]byte, 1000)}}}
	for {
		if err := p.Write(ctx, m); err != nil {
			return err
		}
	}
}

// echo sends the payloads of each message of p back, until the peer closes, and returns nil. It
// returns any other error.
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

// startChild starts a child process with the given role, which dials the victim in the given
// dialect, accepts its pipe, and returns both. The child is killed at the end of the test.
func (v *victim) startChild(t *testing.T, dialect pipe.Dialect, role string) *child {
	t.Helper()
	program, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), childRole+"="+role, childDialect+"="+string(dialect), childURL+"="+v.url())
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
		_ = cmd.Wait() // fails for a killed child
	})
	c.pipe, err = v.listener.Accept(t.Context())
	require.NoError(t, err)
	return c
}

func (c *child) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	require.NoError(t, c.cmd.Process.Signal(s))
}

// waitLine waits for the next line of the child's standard output and requires that it is want.
func (c *child) waitLine(t testing.TB, want string) {
	t.Helper()
	line, err := c.out.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, want+"\n", line)
}
