package interop

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// A Go pipe and libtensorpipe exchange messages over uv and basic, as client and as server. The
// loss of a C++ peer is reported, and a Go peer, but no C++ peer, gets the native dialect.
func TestParity(t *testing.T) {
	parity.Case(t, "interop/libtensorpipe.uv_basic_go_client", func(t *testing.T) {
		t.Run("echo", func(t *testing.T) { eachShape(t, plain.clientAgainstEcho) })
		t.Run("sink", func(t *testing.T) { eachShape(t, plain.clientAgainstSink) })
		t.Run("both ways at once", func(t *testing.T) { plain.clientBothWays(t, newBatch(Shape{Seed: 18}, 40)) })
	})
	parity.Case(t, "interop/libtensorpipe.uv_basic_go_server", func(t *testing.T) {
		t.Run("echo", func(t *testing.T) { eachShape(t, plain.serverEchoes) })
		t.Run("source", func(t *testing.T) { eachShape(t, plain.serverAgainstSource) })
		t.Run("all at once", func(t *testing.T) { plain.serverEchoesAllAtOnce(t, newBatch(Shape{Seed: 19}, race.Pick(40, 15))) })
	})
	parity.Case(t, "interop/libtensorpipe.peer_killed", plain.killed)
	parity.Case(t, "interop/libtensorpipe.go_go_upgrade", upgrade)
}

// shapes are the messages of each exchange.
var shapes = map[string]struct {
	shape Shape
	count int
}{
	"random":        {Shape{Seed: 11}, race.Pick(40, 15)},
	"all targets":   {Shape{Seed: 12, Targets: TargetsAll}, race.Pick(20, 8)},
	"no targets":    {Shape{Seed: 13, Targets: TargetsNone}, race.Pick(20, 8)},
	"empty parts":   {Shape{Seed: 14, Sizes: []int{0}, Payloads: ptr(2), Tensors: ptr(2)}, 4},
	"metadata only": {Shape{Seed: 15, Payloads: ptr(0), Tensors: ptr(0)}, 4},
	"large tensor":  {Shape{Seed: 16, Sizes: []int{large}, Payloads: ptr(0), Tensors: ptr(1)}, 2},
	"large payload": {Shape{Seed: 17, Sizes: []int{large}, Payloads: ptr(1), Tensors: ptr(0)}, 1},
}

func eachShape(t *testing.T, f func(t *testing.T, b *batch)) {
	for name, s := range shapes {
		t.Run(name, func(t *testing.T) { f(t, newBatch(s.shape, s.count)) })
	}
}

func (r route) clientAgainstEcho(t *testing.T, b *batch) {
	peer := r.start(t, "echo")
	p := r.dial(t, peer)
	ctx := testContext(t)
	for _, sent := range b.messages {
		op := p.WriteAsync(ctx, sent.pipe())
		requireMessage(t, sent, p)
		require.NoError(t, op.Wait(ctx))
	}
	r.requireCarried(t, p, b, sent, received)
	require.ErrorIs(t, p.WriteConfirmed(ctx, &pipe.Message{}), pipe.ErrNoControl)
	require.NoError(t, p.Close())
	require.NoError(t, peer.Stop())
}

func (r route) clientAgainstSink(t *testing.T, b *batch) {
	peer := r.start(t, "sink")
	p := r.dial(t, peer)
	ctx := testContext(t)
	var ops []*pipe.WriteOp
	for _, m := range b.messages {
		ops = append(ops, p.WriteAsync(ctx, m.pipe()))
	}
	for _, want := range b.reports() {
		var got Report
		peer.Next(&got)
		require.Equal(t, want, got)
	}
	for _, op := range ops {
		require.NoError(t, op.Wait(ctx))
	}
	r.requireCarried(t, p, b, sent)
	require.NoError(t, p.Close())
	require.NoError(t, peer.Stop())
}

// clientBothWays dials a C++ peer that echoes, and queues all messages of b before it reads the
// first echo. It checks that all echoes are the same as the messages, and that the channel of r has
// carried their tensors.
func (r route) clientBothWays(t *testing.T, b *batch) {
	peer := r.start(t, "echo")
	p := r.dial(t, peer)
	ctx := testContext(t)
	var ops []*pipe.WriteOp
	for _, m := range b.messages {
		ops = append(ops, p.WriteAsync(ctx, m.pipe()))
	}
	for _, want := range b.messages {
		requireMessage(t, want, p)
	}
	for _, op := range ops {
		require.NoError(t, op.Wait(ctx))
	}
	r.requireCarried(t, p, b, sent, received)
}

func (r route) serverEchoes(t *testing.T, b *batch) { r.echoTo(t, b) }

func (r route) serverEchoesAllAtOnce(t *testing.T, b *batch) {
	r.echoTo(t, b, "--both")
}

// echoTo starts a C++ client that sends the messages of b and checks their echoes, with the further
// flags more, and echoes all messages. It fails the test unless the client has received all echoes
// and the channel of r has carried the tensors.
func (r route) echoTo(t *testing.T, b *batch, more ...string) {
	l := r.listen(t)
	peer := r.startTo(t, l, "check", append(b.flags(), more...)...)
	p := r.accept(t, l)
	r.echoAll(t, p)
	require.NoError(t, peer.Wait())
	var sums totals
	peer.Next(&sums)
	require.Equal(t, len(b.messages), sums.Messages)
	r.requireCarried(t, p, b, sent, received)
}

// echoAll reads each message of p and writes it back, until the peer closes the pipe, and waits for
// the writes. It fails the test at an error, but accepts that the last write fails because the peer
// has closed.
func (r route) echoAll(t *testing.T, p *pipe.Pipe) {
	ctx := testContext(t)
	var ops []*pipe.WriteOp
	for {
		in, err := p.Next(ctx)
		if err != nil {
			r.requireClosed(t, err)
			break
		}
		d, a := in.Descriptor(), pipe.NewAllocation(in.Descriptor())
		require.NoError(t, in.Read(ctx, a))
		ops = append(ops, p.WriteAsync(ctx, d.Message(a)))
	}
	for i, op := range ops {
		if err := op.Wait(ctx); err != nil {
			require.Equal(t, len(ops)-1, i, "only the last write may fail: %v", err)
			r.requireClosed(t, err)
		}
	}
}

// requireClosed fails the test unless err means that the peer has closed the pipe. With cma it also
// accepts the loss of the peer: a C++ peer that closes in the callback of its last read never
// acknowledges the last copy.
func (r route) requireClosed(t *testing.T, err error) {
	t.Helper()
	if r.channel == "cma" && errors.Is(err, pipe.ErrPeerLost) {
		return
	}
	require.ErrorIs(t, err, pipe.ErrPeerClosed)
}

func (r route) serverAgainstSource(t *testing.T, b *batch) {
	l := r.listen(t)
	peer := r.startTo(t, l, "source", b.flags()...)
	p := r.accept(t, l)
	for _, want := range b.messages {
		requireMessage(t, want, p)
	}
	r.requireCarried(t, p, b, received)
	require.NoError(t, p.Close())
	require.NoError(t, peer.Wait())
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// pipe returns m as a message to write to a pipe. The result shares the memory of m.
func (m Message) pipe() *pipe.Message {
	out := &pipe.Message{Metadata: m.Metadata}
	for _, p := range m.Payloads {
		out.Payloads = append(out.Payloads, pipe.Payload{Data: p.Data, Metadata: p.Metadata})
	}
	for _, p := range m.Tensors {
		tensor := pipe.Tensor{Buffer: device.Bytes(p.Data), Metadata: p.Metadata}
		if p.Targeted {
			tensor.TargetDevice = device.CPU()
		}
		out.Tensors = append(out.Tensors, tensor)
	}
	return out
}

// requireMessage receives the next message of p, and fails the test unless its metadata, payloads,
// tensors and target devices are those of want.
func requireMessage(t *testing.T, want Message, p *pipe.Pipe) {
	t.Helper()
	in, err := p.Next(testContext(t))
	require.NoError(t, err)
	d, a := in.Descriptor(), pipe.NewAllocation(in.Descriptor())
	require.NoError(t, in.Read(testContext(t), a))
	require.True(t, bytes.Equal(want.Metadata, d.Metadata))
	require.Len(t, d.Payloads, len(want.Payloads))
	for i, part := range want.Payloads {
		require.True(t, bytes.Equal(part.Metadata, d.Payloads[i].Metadata), "metadata of payload %d", i)
		require.True(t, bytes.Equal(part.Data, a.Payloads[i]), "payload %d", i)
	}
	require.Len(t, d.Tensors, len(want.Tensors))
	for i, part := range want.Tensors {
		got, _ := a.Tensors[i].Contiguous()
		require.True(t, bytes.Equal(part.Metadata, d.Tensors[i].Metadata), "metadata of tensor %d", i)
		require.True(t, bytes.Equal(part.Data, got), "tensor %d", i)
		require.Equal(t, device.CPU(), d.Tensors[i].SourceDevice)
		require.Equal(t, part.Targeted, !d.Tensors[i].TargetDevice.IsZero(), "target of tensor %d", i)
	}
}
