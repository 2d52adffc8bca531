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

// killed tests how a pipe reports a peer that is killed with SIGKILL.
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

// kill kills a peer with SIGKILL and fails the test if it does not end within maxErrorDelay.
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

// killedSender kills a peer that sends a tensor. The sockets of many lanes may hold all of it: Read
// returns correct data or an error, and the pipe is lost.
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

// requireBig checks that a has the data of big.
func requireBig(t *testing.T, a pipe.Allocation) {
	t.Helper()
	got, _ := a.Tensors[0].Contiguous()
	require.True(t, bytes.Equal(big().messages[0].Tensors[0].Data, got))
}

// killedWhileWriting kills a peer that has begun to receive. The write may succeed, but the pipe is
// lost.
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

// killedWhileReading kills a peer from which a read has begun. Read returns correct data or an
// error.
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

// killedIdle kills the peer of an idle pipe, which libtensorpipe itself would not notice.
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

// requirePeerEnd checks the error about a peer that was killed. It looks like a close if the peer
// had read all that it was sent.
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
