package pipe_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/channeltest/npu"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// pinned is host memory that is valid on a stream, filled with 'o', and what kernels on the stream
// have seen of it.
type pinned struct {
	bytes         []byte
	stream        *delayed.Stream
	before, after []byte // snapshots by work that was enqueued before and after a Read
	release       func()
	device.Buffer
}

// hold returns n bytes of host memory on a new stream of kind, which is held. After the
// hold, a kernel takes the snapshot before.
func hold(t *testing.T, kind *delayed.Kind, n int) *pinned {
	t.Helper()
	_, s := alloc(t, kind, 0, 1)
	p := &pinned{bytes: bytes.Repeat([]byte("o"), n), stream: s, release: s.Hold()}
	p.Buffer = device.Bytes(p.bytes).WithStream(s)
	p.launch(t, func() { p.before = bytes.Clone(p.bytes) })
	return p
}

func (p *pinned) launch(t *testing.T, kernel func()) {
	t.Helper()
	require.NoError(t, p.stream.Launch(func(...[]byte) error { kernel(); return nil }))
}

// check requires that p was not written to yet, releases the stream after it has enqueued more work,
// and requires that earlier work has seen the old bytes, and later work want.
func (p *pinned) check(t *testing.T, want []byte) {
	t.Helper()
	old := bytes.Repeat([]byte("o"), len(p.bytes))
	require.True(t, bytes.Equal(old, p.bytes), "the stream is still held")
	p.launch(t, func() { p.after = bytes.Clone(p.bytes) })
	p.launch(t, func() { clear(p.bytes) })
	p.release()
	require.NoError(t, p.stream.Synchronize(testContext(t)))
	require.True(t, bytes.Equal(old, p.before), "earlier work sees the old bytes")
	require.True(t, bytes.Equal(want, p.after), "later work sees the received bytes")
	require.True(t, bytes.Equal(make([]byte, len(p.bytes)), p.bytes), "nothing is written after later work")
}

func withKind(kind device.Kind) func(*pipe.Options) {
	return func(o *pipe.Options) { o.Kinds = []device.Kind{kind} }
}

// TestReadDoesNotWaitForStreams checks on every path that Read into host memory with a stream returns
// while the stream is held, and that the bytes come to the memory in the order of the stream: of
// inline, joined, compressed and large tensors, each on a stream of its own. Later messages arrive
// meanwhile, and Close of the pipe waits for no stream.
func TestReadDoesNotWaitForStreams(t *testing.T) {
	for _, path := range paths() {
		t.Run(path.name, func(t *testing.T) {
			kind := npu.NewKind()
			t.Cleanup(kind.Close)
			client, server := connect(t, path, withKind(kind))
			cpu := device.CPU()
			m := message(1, nil, []int{100, large, large, large, 1000, 0}, cpu, cpu, cpu, cpu, cpu, cpu)
			m.Tensors[3].Buffer = device.Bytes(contents["weights"](large))
			m.Tensors[3].Compression = pipe.CompressionZstd
			m.Tensors[4].Buffer = device.Bytes(contents["text"](1000))
			m.Tensors[4].Compression = pipe.CompressionS2
			op := client.WriteAsync(testContext(t), m)
			in := next(t, server)
			var memory []*pinned
			var a pipe.Allocation
			for _, tensor := range in.Descriptor().Tensors {
				memory = append(memory, hold(t, kind, tensor.Length))
				a.Tensors = append(a.Tensors, memory[len(memory)-1].Buffer)
			}
			require.NoError(t, in.Read(testContext(t), a))
			in.Release()
			require.NoError(t, op.Wait(testContext(t)))
			exchange(t, client, server, message(2, []int{10, large}, []int{10, large}))
			go func() { _ = client.Close() }()
			require.NoError(t, server.Close())
			for k, p := range memory {
				want, _ := m.Tensors[k].Buffer.Contiguous()
				p.check(t, want)
			}
		})
	}
}

// TestReadWithoutStagingMemory checks that Read into host memory with a stream waits for the stream
// if Limits.ContextBytesInFlight does not suffice for a copy, and that this ends with ctx. Memory that
// was staged before counts until its stream has done the copy.
func TestReadWithoutStagingMemory(t *testing.T) {
	for _, path := range []path{memPath(), nativePath()} {
		t.Run(string(path.dialect), func(t *testing.T) {
			kind := npu.NewKind()
			t.Cleanup(kind.Close)
			client, server := connect(t, path, withKind(kind), func(o *pipe.Options) { o.Limits.ContextBytesInFlight = 10_000 })
			send := func(seed int) (*pipe.WriteOp, *pipe.Incoming) {
				op := client.WriteAsync(testContext(t), message(seed, nil, []int{6000}))
				return op, next(t, server)
			}
			first, second := hold(t, kind, 6000), hold(t, kind, 6000)
			op, in := send(1)
			require.NoError(t, in.Read(testContext(t), pipe.Allocation{Tensors: []device.Buffer{first.Buffer}}))
			require.NoError(t, op.Wait(testContext(t)))

			op, in = send(2)
			ctx, stop := context.WithCancelCause(testContext(t))
			waits := testwait.StartBlocked(t, "awaitEvent", func() error {
				return in.Read(ctx, pipe.Allocation{Tensors: []device.Buffer{second.Buffer}})
			})
			stop(errEnough)
			require.ErrorIs(t, testwait.Finish(t, waits), errEnough)
			if path.dialect == pipe.DialectCompatible {
				require.NoError(t, in.Discard(testContext(t)))
			}
			require.NoError(t, op.Wait(testContext(t)))

			op, in = send(3)
			waits = testwait.StartBlocked(t, "awaitEvent", func() error {
				return in.Read(testContext(t), pipe.Allocation{Tensors: []device.Buffer{second.Buffer}})
			})
			second.release()
			require.NoError(t, testwait.Finish(t, waits))
			require.NoError(t, op.Wait(testContext(t)))
			require.True(t, bytes.Equal(pattern(6000, 1003), second.bytes))

			first.check(t, pattern(6000, 1001))
			third := hold(t, kind, 6000) // the first one's bytes are free again
			op, in = send(4)
			require.NoError(t, in.Read(testContext(t), pipe.Allocation{Tensors: []device.Buffer{third.Buffer}}))
			require.NoError(t, op.Wait(testContext(t)))
			third.check(t, pattern(6000, 1004))
		})
	}
}

// TestHeldSourceBlocksNoOtherMessage checks on every native path that WriteAsync of host memory whose
// stream is held returns, that later messages overtake it in both directions, and that it is sent
// with the bytes of the earlier work on the stream.
func TestHeldSourceBlocksNoOtherMessage(t *testing.T) {
	onNativePaths(t, func(t *testing.T, client, server *pipe.Pipe) {
		kind := npu.NewKind()
		t.Cleanup(kind.Close)
		want := pattern(large, 1)
		src := hold(t, kind, large)
		src.launch(t, func() { copy(src.bytes, want) })
		op := client.WriteAsync(testContext(t), &pipe.Message{Tensors: []pipe.Tensor{{Buffer: src.Buffer, TargetDevice: device.CPU()}}})
		in := next(t, server)
		a := pipe.NewAllocation(in.Descriptor())
		done := testwait.Start(func() error { return in.Read(testContext(t), a) })
		exchange(t, client, server, message(2, []int{10, large}, []int{10, large, large}))
		src.release()
		require.NoError(t, testwait.Finish(t, done))
		require.NoError(t, op.Wait(testContext(t)))
		got, _ := a.Tensors[0].Contiguous()
		require.True(t, bytes.Equal(want, got))
	})
}

// TestCloseDespiteHeldSource checks that Close of a pipe that is sending host memory whose stream is
// held ends after CloseTimeout, on every path.
func TestCloseDespiteHeldSource(t *testing.T) {
	for _, path := range paths() {
		t.Run(path.name, func(t *testing.T) {
			kind := npu.NewKind()
			t.Cleanup(kind.Close)
			client, server := connect(t, path, func(o *pipe.Options) { o.CloseTimeout = 10 * time.Millisecond })
			src := hold(t, kind, large)
			op := client.WriteAsync(testContext(t), &pipe.Message{Tensors: []pipe.Tensor{{Buffer: src.Buffer, TargetDevice: device.CPU()}}})
			in := next(t, server)
			done := testwait.Start(func() error { return in.Read(testContext(t), pipe.NewAllocation(in.Descriptor())) })
			require.Error(t, client.Close())
			require.Error(t, op.Wait(testContext(t)))
			require.Error(t, testwait.Finish(t, done))
		})
	}
}
