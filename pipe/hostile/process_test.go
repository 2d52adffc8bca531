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
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// inBothDialects runs f with a victim of its own for each dialect, and a sibling
// process that must not notice.
func inBothDialects(t *testing.T, f func(t *testing.T, v *victim, spawn func(part string) *child)) {
	for _, dialect := range []string{pipe.DialectCompatible, pipe.DialectNative} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			v := newVictim(t)
			sibling := v.spawn(t, dialect, "echo")
			f(t, v, func(part string) *child { return v.spawn(t, dialect, part) })
			sibling.unharmed(t)
			v.unharmed(t)
			v.alive(t)
		})
	}
}

// A process is killed in the middle of what it sends. It has a child of its own
// that lives on.
func TestSenderKilled(t *testing.T) {
	inBothDialects(t, func(t *testing.T, v *victim, spawn func(string) *child) {
		for _, part := range []string{"send payload", "send tensor"} {
			c := spawn(part)
			in, err := c.pipe.Next(t.Context())
			require.NoError(t, err)
			read := make(chan error, 1)
			c.signal(t, syscall.SIGSTOP) // with its buffers full, it has not sent all
			go func() { read <- in.Read(t.Context(), pipe.NewAllocation(in.Descriptor())) }()
			v.unharmed(t)
			c.signal(t, syscall.SIGKILL)
			require.ErrorIs(t, <-read, pipe.ErrPeerLost)
			requireOver(t, c.pipe)
		}
	})
}

// A process is killed in the middle of a tensor of which this end has a part.
func TestSenderKilledWithinATensor(t *testing.T) {
	v := newVictim(t)
	c := v.spawn(t, pipe.DialectNative, "send tensor")
	in, err := c.pipe.Next(t.Context())
	require.NoError(t, err)
	dst := make([]byte, much)
	read := make(chan error, 1)
	go func() {
		read <- in.Read(t.Context(), pipe.Allocation{Tensors: []device.Buffer{device.Bytes(dst)}})
	}()
	c.signal(t, syscall.SIGKILL)
	if err := <-read; err != nil { // it may have been fast
		require.ErrorIs(t, err, pipe.ErrPeerLost)
	}
	clear(dst) // nobody touches it any more
	requireOver(t, c.pipe)
	v.alive(t)
}

// A process is killed in the midst of small messages. Those that came whole can
// be read.
func TestChattingPeerKilled(t *testing.T) {
	inBothDialects(t, func(t *testing.T, v *victim, spawn func(string) *child) {
		c := spawn("chat")
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
		requireOver(t, c.pipe)
	})
}

// A process is killed in the middle of what it receives, and does not read.
func TestReceiverKilled(t *testing.T) {
	inBothDialects(t, func(t *testing.T, v *victim, spawn func(string) *child) {
		for _, part := range []string{"send payload", "send tensor"} {
			c := spawn("receive")
			op := c.pipe.WriteAsync(t.Context(), bigMessage(part))
			c.hears(t, "described")
			v.unharmed(t)
			c.signal(t, syscall.SIGKILL)
			require.ErrorIs(t, op.Wait(t.Context()), pipe.ErrPeerLost)
			requireOver(t, c.pipe)
		}
	})
}

// A process is killed while nothing is under way: the pipe notices by itself.
func TestIdlePeerKilled(t *testing.T) {
	inBothDialects(t, func(t *testing.T, v *victim, spawn func(string) *child) {
		c := spawn("echo")
		c.unharmed(t)
		c.signal(t, syscall.SIGKILL)
		requireOver(t, c.pipe)
	})
}

// A process that is stopped for a while has not gone: nothing that was under way
// is lost or changed.
func TestPeerStopped(t *testing.T) {
	t.Parallel()
	const messages, pause = 40, 2 * time.Second
	inBothDialects(t, func(t *testing.T, v *victim, spawn func(string) *child) {
		c := spawn("echo")
		c.unharmed(t)
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
		v.unharmed(t)
		<-time.After(pause) // what must not matter
		c.signal(t, syscall.SIGCONT)
		for _, op := range ops {
			require.NoError(t, op.Wait(t.Context()))
		}
		echoed.Wait()
		c.unharmed(t)
		require.NoError(t, c.pipe.Close())
	})
}

// stoppedPayload is small or large.
func stoppedPayload(i int) []byte {
	p := make([]byte, []int{100, 3 << 20, 60_000}[i%3])
	for k := range p {
		p[k] = byte(i + k + k>>8)
	}
	return p
}

// unharmed sends a message to the child and gets it back.
func (c *child) unharmed(t testing.TB) {
	t.Helper()
	m := &pipe.Message{Payloads: []pipe.Payload{{Data: []byte("still there?")}}}
	require.NoError(t, c.pipe.Write(t.Context(), m))
	in, err := c.pipe.Next(t.Context())
	require.NoError(t, err)
	a := pipe.NewAllocation(in.Descriptor())
	require.NoError(t, in.Read(t.Context(), a))
	require.Equal(t, "still there?", string(a.Payloads[0]))
}

// requireOver checks that a pipe whose peer was killed says so. The kernel of
// such a peer ends connections without unread bytes as if it had closed them;
// that must not look like a close.
func requireOver(t testing.TB, p *pipe.Pipe) {
	t.Helper()
	_, err := p.Next(t.Context())
	require.ErrorIs(t, err, pipe.ErrPeerLost)
	require.NoError(t, p.Close())
}
