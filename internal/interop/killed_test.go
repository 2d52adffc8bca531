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

// killed checks, in subtests, that a pipe over r reports the loss of a peer that is killed with
// SIGKILL, during transfers and while idle.
func (r route) killed(t *testing.T) {
	t.Run("while it receives a tensor", r.killedReceiver)
	t.Run("while it sends a tensor", r.killedSender)
	t.Run("while a tensor is sent", r.killedWhileWriting)
	t.Run("while a tensor is received", r.killedWhileReading)
	t.Run("idle", r.killedIdle)
}

// big is one tensor that exceeds the buffers of a socket.
var big = sync.OnceValue(func() *batch {
	return newBatch(Shape{Seed: 20, Sizes: []int{large}, Payloads: ptr(0), Tensors: ptr(1), Targets: TargetsAll}, 1)
})

// maxErrorDelay bounds the time until all calls have returned their errors. It is far more than
// they take on a busy machine and less than the kernel's keepalive, so that only the end of the
// process can be the cause.
const maxErrorDelay = 15 * time.Second

// kill kills peer with SIGKILL and waits until it has exited. The test fails if it does not end
// within maxErrorDelay after that.
func kill(t *testing.T, peer *Peer) {
	t.Helper()
	peer.Kill()
	dead := time.Now()
	t.Cleanup(func() {
		took := time.Since(dead)
		t.Logf("all calls had ended %v after the kill", took)
		require.Less(t, took, maxErrorDelay)
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
	if r.lanes > 0 { // their sockets may buffer the tensor, and the pipe may look closed
		requirePeerEnd(t, err)
		requirePeerEnd(t, again)
		if sent != nil {
			requirePeerEnd(t, sent)
		}
		return
	}
	for _, err := range []error{err, sent, again} {
		require.ErrorIs(t, err, pipe.ErrPeerLost)
		requirePeerNamed(t, err)
	}
}

// killedSender kills a peer that has begun to send a tensor. It checks that Read returns an error
// or the right data, which the sockets of many lanes may hold, and that Next then reports the end
// of the peer.
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
		requirePeerNamed(t, err)
	} else {
		requireBig(t, a)
	}
	_, err = p.Next(testContext(t))
	requirePeerEnd(t, err)
}

// requireBig fails the test unless the first tensor of a has the bytes of the message that big
// returns.
func requireBig(t *testing.T, a pipe.Allocation) {
	t.Helper()
	got, _ := a.Tensors[0].Contiguous()
	require.True(t, bytes.Equal(big().messages[0].Tensors[0].Data, got))
}

// killedWhileWriting kills a peer while this end writes a tensor to it. It checks that the write
// succeeds or reports the end of the peer, and that Next reports that end.
func (r route) killedWhileWriting(t *testing.T) {
	peer := r.start(t, "sink")
	p := r.dial(t, peer)
	op := p.WriteAsync(testContext(t), big().messages[0].pipe())
	kill(t, peer)
	if err := op.Wait(testContext(t)); err != nil {
		requirePeerEnd(t, err)
	}
	_, err := p.Next(testContext(t))
	requirePeerEnd(t, err)
}

// killedWhileReading kills a peer while this end reads a tensor from it. It checks that Read
// returns the right data or reports the end of the peer, and that Next reports that end.
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
		requirePeerEnd(t, err)
	}
	_, err = p.Next(testContext(t))
	requirePeerEnd(t, err)
}

// killedIdle kills the peer of an idle pipe. It checks that a blocked Next and a later Write report
// the end of the peer.
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
		requirePeerEnd(t, err)
	}
}

// requirePeerEnd fails the test unless err names the peer and matches pipe.ErrPeerLost or
// pipe.ErrPeerClosed. A killed peer that has read everything looks as if it had closed.
func requirePeerEnd(t *testing.T, err error) {
	t.Helper()
	require.True(t, errors.Is(err, pipe.ErrPeerLost) || errors.Is(err, pipe.ErrPeerClosed), "%v", err)
	requirePeerNamed(t, err)
}

func requirePeerNamed(t *testing.T, err error) {
	t.Helper()
	var e *pipe.Error
	require.ErrorAs(t, err, &e)
	require.NotEmpty(t, e.Peer)
	require.NotEmpty(t, e.Conn)
}
