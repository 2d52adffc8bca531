package interop

import (
	"bytes"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// killed is what a pipe makes of a peer that dies as by kill -9.
func (r route) killed(t *testing.T) {
	t.Run("while it receives a tensor", r.killedReceiver)
	t.Run("while it sends a tensor", r.killedSender)
	t.Run("while a tensor leaves", r.killedWhileWriting)
	t.Run("while a tensor comes", r.killedWhileReading)
	t.Run("idle", r.killedIdle)
}

// big is a tensor that the buffers of one socket do not hold.
var big = sync.OnceValue(func() *batch {
	return newBatch(Shape{Seed: 20, Sizes: []int{large}, Payloads: ptr(0), Tensors: ptr(1), Targets: TargetsAll}, 1)
})

// told is how long it may take until all calls have ended with their errors. It is far
// more than it takes on a busy machine, and less than the kernel's keepalive, so that it
// is the end of the process that is heard of.
const told = 15 * time.Second

// kill ends a peer as kill -9 does. The test is to end soon after that.
func kill(t *testing.T, peer *Peer) {
	t.Helper()
	peer.Kill()
	dead := time.Now()
	t.Cleanup(func() {
		took := time.Since(dead)
		t.Logf("all calls had ended %v after the kill", took)
		require.Less(t, took, told)
	})
}

func (r route) killedReceiver(t *testing.T) {
	peer := r.start(t, "stall")
	p := r.dial(t, peer)
	op := p.WriteAsync(testContext(t), big().messages[0].pipe())
	var described struct{ Payloads, Tensors int }
	peer.Next(&described)
	require.Equal(t, 1, described.Tensors)
	kill(t, peer)
	_, err := p.Next(testContext(t))
	sent, again := op.Wait(testContext(t)), p.Write(testContext(t), &pipe.Message{})
	if r.lanes > 0 { // their sockets may hold the tensor, and the others look closed
		requireGone(t, err)
		requireGone(t, again)
		if sent != nil {
			requireGone(t, sent)
		}
		return
	}
	for _, err := range []error{err, sent, again} {
		require.ErrorIs(t, err, pipe.ErrPeerLost)
		requireNamed(t, err)
	}
}

// killedSender kills a peer that sends a tensor, of which the sockets of many lanes
// may hold all: what is read is right or an error, and the pipe is lost.
func (r route) killedSender(t *testing.T) {
	l := r.listen(t)
	peer := r.startTo(t, l, "source", big().flags()...)
	p := r.accept(t, l)
	in, err := p.Next(testContext(t))
	require.NoError(t, err)
	kill(t, peer)
	a := pipe.NewAllocation(in.Descriptor())
	if err := in.Read(testContext(t), a); r.lanes == 0 || err != nil {
		require.ErrorIs(t, err, pipe.ErrPeerLost)
		requireNamed(t, err)
	} else {
		requireBig(t, a)
	}
	_, err = p.Next(testContext(t))
	requireGone(t, err)
}

// requireBig checks that a is what big has.
func requireBig(t *testing.T, a pipe.Allocation) {
	t.Helper()
	got, _ := a.Tensors[0].Contiguous()
	require.True(t, bytes.Equal(big().messages[0].Tensors[0].Data, got))
}

// killedWhileWriting kills a peer that has just begun to receive. The message
// may be through all the same, the pipe is lost.
func (r route) killedWhileWriting(t *testing.T) {
	peer := r.start(t, "sink")
	p := r.dial(t, peer)
	op := p.WriteAsync(testContext(t), big().messages[0].pipe())
	kill(t, peer)
	if err := op.Wait(testContext(t)); err != nil {
		requireGone(t, err)
	}
	_, err := p.Next(testContext(t))
	requireGone(t, err)
}

// killedWhileReading kills a peer when reading from it has just begun. What is
// read is right or an error.
func (r route) killedWhileReading(t *testing.T) {
	l := r.listen(t)
	peer := r.startTo(t, l, "source", big().flags()...)
	p := r.accept(t, l)
	in, err := p.Next(testContext(t))
	require.NoError(t, err)
	a := pipe.NewAllocation(in.Descriptor())
	read := make(chan error, 1)
	go func() { read <- in.Read(testContext(t), a) }()
	kill(t, peer)
	if err := <-read; err == nil {
		requireBig(t, a)
	} else {
		requireGone(t, err)
	}
	_, err = p.Next(testContext(t))
	requireGone(t, err)
}

// killedIdle is about a pipe on which nothing is going on: libtensorpipe itself
// would not notice.
func (r route) killedIdle(t *testing.T) {
	peer := r.start(t, "echo")
	p := r.dial(t, peer)
	next := make(chan error, 1)
	go func() {
		_, err := p.Next(testContext(t))
		next <- err
	}()
	kill(t, peer)
	for _, err := range []error{<-next, p.Write(testContext(t), &pipe.Message{})} {
		requireGone(t, err)
	}
}

// requireGone looks at an error about a peer that died. Whether that looks like
// a close is up to what the peer had not read yet.
func requireGone(t *testing.T, err error) {
	t.Helper()
	require.True(t, errors.Is(err, pipe.ErrPeerLost) || errors.Is(err, pipe.ErrPeerClosed), "%v", err)
	requireNamed(t, err)
}

func requireNamed(t *testing.T, err error) {
	t.Helper()
	var e *pipe.Error
	require.ErrorAs(t, err, &e)
	require.NotEmpty(t, e.Peer)
	require.NotEmpty(t, e.Conn)
}
