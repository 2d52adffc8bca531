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

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/parity"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// TestParity exchanges messages between a pipe of ours and libtensorpipe.
func TestParity(t *testing.T) {
	parity.Case(t, "interop/libtensorpipe.uv_basic_go_client", func(t *testing.T) {
		t.Run("echo", func(t *testing.T) { eachShape(t, clientAgainstEcho) })
		t.Run("sink", func(t *testing.T) { eachShape(t, clientAgainstSink) })
		t.Run("both ways at once", clientBothWays)
	})
	parity.Case(t, "interop/libtensorpipe.uv_basic_go_server", func(t *testing.T) {
		t.Run("echo", func(t *testing.T) { eachShape(t, serverEchoes) })
		t.Run("source", func(t *testing.T) { eachShape(t, serverAgainstSource) })
		t.Run("all at once", serverEchoesAllAtOnce)
	})
	parity.Case(t, "interop/libtensorpipe.peer_killed", func(t *testing.T) {
		t.Run("while it receives a tensor", killedReceiver)
		t.Run("while it sends a tensor", killedSender)
		t.Run("idle", killedIdle)
	})
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

func clientAgainstEcho(t *testing.T, s Shape, count int) {
	peer := Start(t, "echo", "--listen", "uv://127.0.0.1:0")
	p := dial(t, peer)
	ctx := testContext(t)
	for i := range count {
		sent := Generate(s, i)
		op := p.WriteAsync(ctx, sent.pipe())
		requireMessage(t, sent, p)
		require.NoError(t, op.Wait(ctx))
	}
	require.ErrorIs(t, p.WriteConfirmed(ctx, &pipe.Message{}), pipe.ErrNoControl)
	require.NoError(t, p.Close())
	require.NoError(t, peer.Stop())
}

func clientAgainstSink(t *testing.T, s Shape, count int) {
	peer := Start(t, "sink", "--listen", "uv://127.0.0.1:0")
	p := dial(t, peer)
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
	require.NoError(t, p.Close())
	require.NoError(t, peer.Stop())
}

// clientBothWays queues everything before it reads anything.
func clientBothWays(t *testing.T) {
	peer := Start(t, "echo", "--listen", "uv://127.0.0.1:0")
	p := dial(t, peer)
	ctx := testContext(t)
	s := Shape{Seed: 18}
	var ops []*pipe.WriteOp
	for i := range 40 {
		ops = append(ops, p.WriteAsync(ctx, Generate(s, i).pipe()))
	}
	for i := range 40 {
		requireMessage(t, Generate(s, i), p)
	}
	for _, op := range ops {
		require.NoError(t, op.Wait(ctx))
	}
}

func serverEchoes(t *testing.T, s Shape, count int) { echoTo(t, s.flags(count)...) }

func serverEchoesAllAtOnce(t *testing.T) {
	echoTo(t, append(Shape{Seed: 19}.flags(40), "--both")...)
}

// echoTo lets a checking C++ client talk to an echo of ours.
func echoTo(t *testing.T, flags ...string) {
	l := listen(t)
	peer := Start(t, append([]string{"check", "--to", l.URLs()[0]}, flags...)...)
	p, err := l.Accept(testContext(t))
	require.NoError(t, err)
	echoAll(t, p)
	require.NoError(t, peer.Wait())
	var sums totals
	peer.Next(&sums)
	require.Equal(t, flags[1], strconv.Itoa(sums.Messages))
}

// echoAll sends everything back until the peer closes.
func echoAll(t *testing.T, p *pipe.Pipe) {
	ctx := testContext(t)
	var ops []*pipe.WriteOp
	for {
		in, err := p.Next(ctx)
		if err != nil {
			require.ErrorIs(t, err, pipe.ErrPeerClosed)
			break
		}
		d, a := in.Descriptor(), pipe.NewAllocation(in.Descriptor())
		require.NoError(t, in.Read(ctx, a))
		ops = append(ops, p.WriteAsync(ctx, d.Message(a)))
	}
	for _, op := range ops {
		require.NoError(t, op.Wait(ctx))
	}
}

func serverAgainstSource(t *testing.T, s Shape, count int) {
	l := listen(t)
	peer := Start(t, append([]string{"source", "--to", l.URLs()[0]}, s.flags(count)...)...)
	p, err := l.Accept(testContext(t))
	require.NoError(t, err)
	for i := range count {
		requireMessage(t, Generate(s, i), p)
	}
	require.NoError(t, p.Close())
	require.NoError(t, peer.Wait())
}

// big is a tensor that no socket buffer holds.
var big = Shape{Seed: 20, Sizes: []int{256 << 20}, Payloads: ptr(0), Tensors: ptr(1), Targets: TargetsAll}

func killedReceiver(t *testing.T) {
	peer := Start(t, "stall", "--listen", "uv://127.0.0.1:0")
	p := dial(t, peer)
	op := p.WriteAsync(testContext(t), Generate(big, 0).pipe())
	var described struct{ Payloads, Tensors int }
	peer.Next(&described)
	require.Equal(t, 1, described.Tensors)
	peer.Kill()
	_, err := p.Next(testContext(t))
	for _, err := range []error{err, op.Wait(testContext(t)), p.Write(testContext(t), &pipe.Message{})} {
		require.ErrorIs(t, err, pipe.ErrPeerLost)
		requireNamed(t, err)
	}
}

func killedSender(t *testing.T) {
	l := listen(t)
	peer := Start(t, append([]string{"source", "--to", l.URLs()[0]}, big.flags(1)...)...)
	p, err := l.Accept(testContext(t))
	require.NoError(t, err)
	in, err := p.Next(testContext(t))
	require.NoError(t, err)
	peer.Kill()
	err = in.Read(testContext(t), pipe.NewAllocation(in.Descriptor()))
	require.ErrorIs(t, err, pipe.ErrPeerLost)
	requireNamed(t, err)
}

// killedIdle is about a pipe on which nothing is going on: libtensorpipe itself
// would not notice.
func killedIdle(t *testing.T) {
	peer := Start(t, "echo", "--listen", "uv://127.0.0.1:0")
	p := dial(t, peer)
	next := make(chan error, 1)
	go func() {
		_, err := p.Next(testContext(t))
		next <- err
	}()
	peer.Kill()
	for _, err := range []error{<-next, p.Write(testContext(t), &pipe.Message{})} {
		// Whether it looks like a close is up to what the peer had not read yet.
		require.True(t, errors.Is(err, pipe.ErrPeerLost) || errors.Is(err, pipe.ErrPeerClosed), "%v", err)
		requireNamed(t, err)
	}
}

func requireNamed(t *testing.T, err error) {
	t.Helper()
	var e *pipe.Error
	require.ErrorAs(t, err, &e)
	require.Contains(t, e.Peer, "127.0.0.1:")
	require.NotEmpty(t, e.Conn)
}

func dial(t *testing.T, peer *Peer) *pipe.Pipe {
	p, err := newContext(t).Dial(testContext(t), peer.URL())
	require.NoError(t, err)
	require.Equal(t, "uv", p.Plan().Transport)
	name, ok := p.Plan().Channel(device.CPU(), device.CPU())
	require.True(t, ok)
	require.Equal(t, "basic", name)
	return p
}

func listen(t *testing.T) *pipe.Listener {
	l, err := newContext(t).Listen(testContext(t), "uv://127.0.0.1:0")
	require.NoError(t, err)
	return l
}

func newContext(t *testing.T) *pipe.Context {
	c, err := pipe.New(pipe.Options{
		Name:       "go",
		Transports: []pipe.TransportEntry{{Name: "uv", Priority: 0, Transport: uv.New()}},
		Channels:   []pipe.ChannelEntry{{Name: "basic", Priority: 1000, Factory: basic.New()}},
	})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
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
