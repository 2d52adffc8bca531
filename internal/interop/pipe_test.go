package interop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/parity"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// TestParity exchanges messages between a pipe of ours and libtensorpipe.
func TestParity(t *testing.T) {
	parity.Case(t, "interop/libtensorpipe.uv_basic_go_client", func(t *testing.T) {
		t.Run("echo", func(t *testing.T) { eachShape(t, plain.clientAgainstEcho) })
		t.Run("sink", func(t *testing.T) { eachShape(t, plain.clientAgainstSink) })
		t.Run("both ways at once", func(t *testing.T) { plain.clientBothWays(t, Shape{Seed: 18}, 40) })
	})
	parity.Case(t, "interop/libtensorpipe.uv_basic_go_server", func(t *testing.T) {
		t.Run("echo", func(t *testing.T) { eachShape(t, plain.serverEchoes) })
		t.Run("source", func(t *testing.T) { eachShape(t, plain.serverAgainstSource) })
		t.Run("all at once", func(t *testing.T) { plain.serverEchoesAllAtOnce(t, Shape{Seed: 19}, 40) })
	})
	parity.Case(t, "interop/libtensorpipe.peer_killed", plain.killed)
	parity.Case(t, "interop/libtensorpipe.go_go_upgrade", upgrade)
}

// shapes are the messages that every exchange is tried with.
var shapes = map[string]struct {
	shape Shape
	count int
}{
	"random":         {Shape{Seed: 11}, 40},
	"all targets":    {Shape{Seed: 12, Targets: TargetsAll}, 20},
	"no targets":     {Shape{Seed: 13, Targets: TargetsNone}, 20},
	"empty parts":    {Shape{Seed: 14, Sizes: []int{0}, Payloads: ptr(2), Tensors: ptr(2)}, 4},
	"metadata only":  {Shape{Seed: 15, Payloads: ptr(0), Tensors: ptr(0)}, 4},
	"64 MiB tensor":  {Shape{Seed: 16, Sizes: []int{64 << 20}, Payloads: ptr(0), Tensors: ptr(1)}, 2},
	"64 MiB payload": {Shape{Seed: 17, Sizes: []int{64 << 20}, Payloads: ptr(1), Tensors: ptr(0)}, 1},
}

func eachShape(t *testing.T, f func(t *testing.T, s Shape, count int)) {
	for name, s := range shapes {
		t.Run(name, func(t *testing.T) { f(t, s.shape, s.count) })
	}
}

// flags says to tppeer what s says to Generate.
func (s Shape) flags(count int) []string {
	names := map[Targets]string{TargetsMixed: "mixed", TargetsAll: "all", TargetsNone: "none"}
	args := []string{"--count", strconv.Itoa(count), "--seed", fmt.Sprint(s.Seed), "--targets", names[s.Targets]}
	for name, n := range map[string]*int{"--payloads": s.Payloads, "--tensors": s.Tensors} {
		if n != nil {
			args = append(args, name, strconv.Itoa(*n))
		}
	}
	if len(s.Sizes) > 0 {
		args = append(args, "--size", strings.Trim(strings.Join(strings.Fields(fmt.Sprint(s.Sizes)), ","), "[]"))
	}
	return args
}

func (r route) clientAgainstEcho(t *testing.T, s Shape, count int) {
	peer := r.start(t, "echo")
	p := r.dial(t, peer)
	ctx := testContext(t)
	for i := range count {
		sent := Generate(s, i)
		op := p.WriteAsync(ctx, sent.pipe())
		requireMessage(t, sent, p)
		require.NoError(t, op.Wait(ctx))
	}
	r.requireCarried(t, p, s, count, sent, received)
	require.ErrorIs(t, p.WriteConfirmed(ctx, &pipe.Message{}), pipe.ErrNoControl)
	require.NoError(t, p.Close())
	require.NoError(t, peer.Stop())
}

func (r route) clientAgainstSink(t *testing.T, s Shape, count int) {
	peer := r.start(t, "sink")
	p := r.dial(t, peer)
	ctx := testContext(t)
	var ops []*pipe.WriteOp
	for i := range count {
		ops = append(ops, p.WriteAsync(ctx, Generate(s, i).pipe()))
	}
	for i := range count {
		var got Report
		peer.Next(&got)
		require.Equal(t, Generate(s, i).Report(), got)
	}
	for _, op := range ops {
		require.NoError(t, op.Wait(ctx))
	}
	r.requireCarried(t, p, s, count, sent)
	require.NoError(t, p.Close())
	require.NoError(t, peer.Stop())
}

// clientBothWays queues everything before it reads anything.
func (r route) clientBothWays(t *testing.T, s Shape, count int) {
	peer := r.start(t, "echo")
	p := r.dial(t, peer)
	ctx := testContext(t)
	var ops []*pipe.WriteOp
	for i := range count {
		ops = append(ops, p.WriteAsync(ctx, Generate(s, i).pipe()))
	}
	for i := range count {
		requireMessage(t, Generate(s, i), p)
	}
	for _, op := range ops {
		require.NoError(t, op.Wait(ctx))
	}
	r.requireCarried(t, p, s, count, sent, received)
}

func (r route) serverEchoes(t *testing.T, s Shape, count int) { r.echoTo(t, s, count) }

func (r route) serverEchoesAllAtOnce(t *testing.T, s Shape, count int) {
	r.echoTo(t, s, count, "--both")
}

// echoTo lets a checking C++ client talk to an echo of ours.
func (r route) echoTo(t *testing.T, s Shape, count int, more ...string) {
	l := r.listen(t)
	peer := r.startTo(t, l, "check", append(s.flags(count), more...)...)
	p := r.accept(t, l)
	r.echoAll(t, p)
	require.NoError(t, peer.Wait())
	var sums totals
	peer.Next(&sums)
	require.Equal(t, count, sums.Messages)
	r.requireCarried(t, p, s, count, sent, received)
}

// echoAll sends everything back until the peer closes, and waits for that to
// have left.
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
			require.Equal(t, len(ops)-1, i, "only the last message may be without an answer: %v", err)
			r.requireClosed(t, err)
		}
	}
}

// requireClosed looks at an error after which the peer has closed the pipe in
// the callback of its last read. With cma the peer tells only behind that
// callback that it is done with the sender's memory, and then not any more: the
// write that it read stays unanswered, which looks like a peer that was lost.
func (r route) requireClosed(t *testing.T, err error) {
	t.Helper()
	if r.channel == "cma" && errors.Is(err, pipe.ErrPeerLost) {
		return
	}
	require.ErrorIs(t, err, pipe.ErrPeerClosed)
}

func (r route) serverAgainstSource(t *testing.T, s Shape, count int) {
	l := r.listen(t)
	peer := r.startTo(t, l, "source", s.flags(count)...)
	p := r.accept(t, l)
	for i := range count {
		requireMessage(t, Generate(s, i), p)
	}
	r.requireCarried(t, p, s, count, received)
	require.NoError(t, p.Close())
	require.NoError(t, peer.Wait())
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// pipe turns a generated message into one to write.
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

// requireMessage receives a message and compares all of it.
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
