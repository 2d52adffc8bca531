package hostile_test

import (
	"bytes"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// inBothDialects runs f as a parallel subtest for each dialect, each with a new victim. startChild
// starts a process with a role that opens a pipe to the victim. A sibling process also has a pipe,
// and must not be affected by what f does.
func inBothDialects(t *testing.T, f func(t *testing.T, v *victim, startChild func(role string) *child)) {
	for _, dialect := range []pipe.Dialect{pipe.DialectCompatible, pipe.DialectNative} {
		t.Run(string(dialect), func(t *testing.T) {
			t.Parallel()
			v := newVictim(t)
			sibling := v.startChild(t, dialect, "echo")
			f(t, v, func(role string) *child { return v.startChild(t, dialect, role) })
			sibling.requireHealthy(t)
			v.requireHealthy(t)
			v.requireServing(t)
		})
	}
}

// TestSenderKilled checks that a Read fails with ErrPeerLost if the sending process is killed
// before it has sent everything, although a child of that process survives.
func TestSenderKilled(t *testing.T) {
	inBothDialects(t, func(t *testing.T, v *victim, startChild func(string) *child) {
		for _, role := range []string{"send payload", "send tensor"} {
			c := startChild(role)
			in, err := c.pipe.Next(t.Context())
			require.NoError(t, err)
			read := make(chan error, 1)
			c.signal(t, syscall.SIGSTOP) // its buffers are full, and it has not sent everything
			go func() { read <- in.Read(t.Context(), pipe.NewAllocation(in.Descriptor())) }()
			v.requireHealthy(t)
			c.signal(t, syscall.SIGKILL)
			require.ErrorIs(t, <-read, pipe.ErrPeerLost)
			requirePeerLost(t, c.pipe)
		}
	})
}

// TestSenderKilledWithinATensor checks that a Read no longer uses its memory after it has failed
// because the sending process was killed within a tensor.
func TestSenderKilledWithinATensor(t *testing.T) {
	v := newVictim(t)
	c := v.startChild(t, pipe.DialectNative, "send tensor")
	in, err := c.pipe.Next(t.Context())
	require.NoError(t, err)
	dst := make([]byte, hugeSize)
	read := make(chan error, 1)
	go func() {
		read <- in.Read(t.Context(), pipe.Allocation{Tensors: []device.Buffer{device.Bytes(dst)}})
	}()
	c.signal(t, syscall.SIGKILL)
	if err := <-read; err != nil { // it may have sent everything
		require.ErrorIs(t, err, pipe.ErrPeerLost)
	}
	clear(dst) // must not be in use any more
	requirePeerLost(t, c.pipe)
	v.requireServing(t)
}

// TestPeerKilledWhileSendingMany checks that complete messages can be read, and then Next or Read
// fails with ErrPeerLost, if a process is killed while it sends many small messages.
func TestPeerKilledWhileSendingMany(t *testing.T) {
	inBothDialects(t, func(t *testing.T, v *victim, startChild func(string) *child) {
		c := startChild("chat")
		var err error
		for n := 0; err == nil; n++ {
			if n == 100 {
				c.signal(t, syscall.SIGKILL)
			}
			var in *pipe.Incoming
			if in, err = c.pipe.Next(t.Context()); err == nil {
				err = in.Read(t.Context(), pipe.NewAllocation(in.Descriptor()))
			}
		}
		require.ErrorIs(t, err, pipe.ErrPeerLost)
		requirePeerLost(t, c.pipe)
	})
}

// TestReceiverKilled checks that a write fails with ErrPeerLost if the receiving process is killed
// before it has read the message.
func TestReceiverKilled(t *testing.T) {
	inBothDialects(t, func(t *testing.T, v *victim, startChild func(string) *child) {
		for _, role := range []string{"send payload", "send tensor"} {
			c := startChild("receive")
			op := c.pipe.WriteAsync(t.Context(), bigMessage(role))
			c.waitLine(t, "described")
			v.requireHealthy(t)
			c.signal(t, syscall.SIGKILL)
			require.ErrorIs(t, op.Wait(t.Context()), pipe.ErrPeerLost)
			requirePeerLost(t, c.pipe)
		}
	})
}

// TestIdlePeerKilled checks that Next fails with ErrPeerLost if a process is killed while its pipe
// is idle.
func TestIdlePeerKilled(t *testing.T) {
	inBothDialects(t, func(t *testing.T, v *victim, startChild func(string) *child) {
		c := startChild("echo")
		c.requireHealthy(t)
		c.signal(t, syscall.SIGKILL)
		requirePeerLost(t, c.pipe)
	})
}

// TestPeerStopped checks that no message is lost or changed, and other pipes work, if a process is
// stopped for some time.
func TestPeerStopped(t *testing.T) {
	t.Parallel()
	const messages, pause = 40, 2 * time.Second
	inBothDialects(t, func(t *testing.T, v *victim, startChild func(string) *child) {
		c := startChild("echo")
		c.requireHealthy(t)
		var echoed sync.WaitGroup
		echoed.Go(func() {
			for i := range messages {
				in, err := c.pipe.Next(t.Context())
				if !assert.NoError(t, err) {
					return
				}
				a := pipe.NewAllocation(in.Descriptor())
				assert.NoError(t, in.Read(t.Context(), a))
				assert.True(t, bytes.Equal(stoppedPayload(i), a.Payloads[0]), "message %d", i)
			}
		})
		var ops []*pipe.WriteOp
		for i := range messages {
			if i == messages/2 {
				c.signal(t, syscall.SIGSTOP)
			}
			ops = append(ops, c.pipe.WriteAsync(t.Context(), &pipe.Message{Payloads: []pipe.Payload{{Data: stoppedPayload(i)}}}))
		}
		v.requireHealthy(t)
		<-time.After(pause) // must have no effect
		c.signal(t, syscall.SIGCONT)
		for _, op := range ops {
			require.NoError(t, op.Wait(t.Context()))
		}
		echoed.Wait()
		c.requireHealthy(t)
		require.NoError(t, c.pipe.Close())
	})
}

// stoppedPayload returns the payload of message i in TestPeerStopped: small, large or medium, with
// bytes that depend on i.
func stoppedPayload(i int) []byte {
	p := make([]byte, []int{100, 3 << 20, 60_000}[i%3])
	for k := range p {
		p[k] = byte(i + k + k>>8)
	}
	return p
}

// requireHealthy sends a message to the child, which must run the role "echo", and requires that it
// comes back.
func (c *child) requireHealthy(t testing.TB) {
	t.Helper()
	m := &pipe.Message{Payloads: []pipe.Payload{{Data: []byte("hello")}}}
	require.NoError(t, c.pipe.Write(t.Context(), m))
	in, err := c.pipe.Next(t.Context())
	require.NoError(t, err)
	a := pipe.NewAllocation(in.Descriptor())
	require.NoError(t, in.Read(t.Context(), a))
	require.Equal(t, "hello", string(a.Payloads[0]))
}

// requirePeerLost requires that Next of p fails with ErrPeerLost, after p's peer was killed, and
// closes p. The kernel of a killed process closes connections without unread bytes in order, which
// must not look like an orderly close of the pipe.
func requirePeerLost(t testing.TB, p *pipe.Pipe) {
	t.Helper()
	_, err := p.Next(t.Context())
	require.ErrorIs(t, err, pipe.ErrPeerLost)
	testwait.Finish(t, p.Done())
	require.ErrorIs(t, p.Err(), pipe.ErrPeerLost)
	require.NoError(t, p.Close())
}
