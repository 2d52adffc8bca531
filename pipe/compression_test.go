package pipe_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest/npu"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

var codecs = []pipe.Compression{pipe.CompressionS2, pipe.CompressionZstd}

// contents are kinds of data.
var contents = map[string]func(n int) []byte{
	"zeros":   func(n int) []byte { return make([]byte, n) },
	"text":    func(n int) []byte { return []byte(strings.Repeat("tensors and text; ", n/18+1)[:n]) },
	"garbage": garbage,
	"float32": func(n int) []byte {
		r := rand.New(rand.NewPCG(3, 4))
		p := make([]byte, 0, n+4)
		for len(p) < n {
			p = binary.LittleEndian.AppendUint32(p, math.Float32bits(float32(r.NormFloat64())))
		}
		return p[:n]
	},
	"int64": func(n int) []byte {
		p := make([]byte, 0, n+8)
		for i := uint64(0); len(p) < n; i++ {
			p = binary.LittleEndian.AppendUint64(p, i*i)
		}
		return p[:n]
	},
	"weights": func(n int) []byte {
		file, err := os.ReadFile("../tensor/safetensors/testdata/digits_split_mlp_final.safetensors")
		if err != nil {
			panic(err)
		}
		return bytes.Repeat(file, n/len(file)+1)[:n]
	},
}

func garbage(n int) []byte {
	p := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(p)
	return p
}

// requestCompression sets the compression c in all payloads and tensors of m, and returns m.
func requestCompression(m *pipe.Message, c pipe.Compression) *pipe.Message {
	for i := range m.Payloads {
		m.Payloads[i].Compression = c
	}
	for i := range m.Tensors {
		m.Tensors[i].Compression = c
	}
	return m
}

// dataMessage returns a message with data as its payload and as its tensor for the device target,
// both with the compression c. The message shares the memory of data.
func dataMessage(data []byte, c pipe.Compression, target device.Device) *pipe.Message {
	return requestCompression(&pipe.Message{
		Payloads: []pipe.Payload{{Data: data}},
		Tensors:  []pipe.Tensor{{Buffer: device.Bytes(data), TargetDevice: target}},
	}, c)
}

// TestCompressedMessagesArrive checks on every path that the receiver gets the original bytes of
// messages with requested compression, for contents and sizes that are compressed and others that
// are not. Under the race detector each path gets only some of them.
func TestCompressedMessagesArrive(t *testing.T) {
	met := 0
	onEveryPath(t, func(t *testing.T, client, server *pipe.Pipe) {
		for _, kind := range slices.Sorted(maps.Keys(contents)) {
			for i, n := range []int{0, 1, 500, 65_536, 65_537, 300_000} {
				met++
				if met%race.Pick(1, 5) != 0 {
					continue
				}
				content := contents[kind]
				m := dataMessage(content(n), codecs[i%2], []device.Device{{}, device.CPU()}[i%2])
				op := client.WriteAsync(testContext(t), m)
				expect(t, server, m)
				require.NoError(t, op.Wait(testContext(t)))
			}
		}
	})
}

// TestMixedMessage checks that a message arrives that has small and large parts, uncompressed and
// compressed with either codec, and that no bytes count as in flight afterwards.
func TestMixedMessage(t *testing.T) {
	onNativePaths(t, func(t *testing.T, client, server *pipe.Pipe) {
		m := message(1, []int{10, large, 1000, large}, []int{large, 70_000, 0, 3})
		for i, c := range []pipe.Compression{pipe.CompressionZstd, pipe.CompressionS2, pipe.CompressionNone, pipe.CompressionNone} {
			m.Payloads[i].Compression, m.Tensors[3-i].Compression = c, c
		}
		m.Payloads[1].Data = contents["weights"](large)
		m.Tensors[1].Buffer = device.Bytes(garbage(70_000))
		for range race.Pick(3, 2) {
			op := client.WriteAsync(testContext(t), m)
			expect(t, server, m)
			require.NoError(t, op.Wait(testContext(t)))
		}
		nothing := func() bool { return client.Stats().BytesInFlight == 0 }
		require.Eventually(t, nothing, testwait.Limit, time.Millisecond, "copied bytes count until they are sent")
	})
}

// TestCompressedSegments checks that a tensor of several segments is compressed as one piece, and
// decompressed into several segments.
func TestCompressedSegments(t *testing.T) {
	client, server := connect(t, nativePath())
	data := contents["text"](700_000)
	m := &pipe.Message{Tensors: []pipe.Tensor{{
		Buffer: device.Host(data[:5], data[5:300_000], data[300_000:]), Compression: pipe.CompressionZstd,
	}}}
	got := make([]byte, len(data))
	op := client.WriteAsync(testContext(t), m)
	in := next(t, server)
	readInto(t, in, pipe.Allocation{Tensors: []device.Buffer{device.Host(got[:400_000], got[400_000:400_001], got[400_001:])}})
	require.NoError(t, op.Wait(testContext(t)))
	require.True(t, bytes.Equal(data, got))
	require.EqualValues(t, 1, server.Stats().Compression.Received.Parts)
}

// TestCompressionStats checks that both ends count compressed parts, that the sender counts those
// that were sent uncompressed, and that the statistics of the channel have the bytes that it
// carried.
func TestCompressionStats(t *testing.T) {
	for _, codec := range codecs {
		client, server := connect(t, nativePath())
		const n = 1 << 20
		write(t, client, dataMessage(make([]byte, n), codec, device.CPU()))
		m := dataMessage(garbage(n), codec, device.CPU())
		op := client.WriteAsync(testContext(t), m)
		for range 2 {
			receive(t, server)
		}
		require.NoError(t, op.Wait(testContext(t)))
		sent := client.Stats()
		got := sent.Compression.Sent
		require.EqualValues(t, 2, got.Parts)
		require.EqualValues(t, 2*n, got.Bytes)
		require.Less(t, got.WireBytes, uint64(n/50))
		require.Equal(t, pipe.Traffic{Messages: 2, Bytes: 2 * n}, sent.Compression.Plain)
		require.Equal(t, pipe.Traffic{Messages: 2, Bytes: 4 * n}, sent.Sent)
		require.Equal(t, got, server.Stats().Compression.Received)
		require.Zero(t, server.Stats().Compression.Sent)
		require.Zero(t, server.Stats().Compression.Plain)
		require.Equal(t, uint64(n), sent.Channels[0].Sent.Bytes, "the compressed zeros are inline")
	}
}

// TestCompressionInTheCompatibleDialect checks that the compatible dialect sends parts uncompressed
// although compression is requested, and that the statistics have the reason.
func TestCompressionInTheCompatibleDialect(t *testing.T) {
	client, server := connect(t, memPath())
	m := dataMessage(make([]byte, 1000), pipe.CompressionS2, device.CPU())
	write(t, client, m)
	expect(t, server, m)
	stats := client.Stats().Compression
	require.Equal(t, pipe.CompressionStats{
		Plain:   pipe.Traffic{Messages: 2, Bytes: 2000},
		Refused: "the pipe uses the compatible dialect",
	}, stats)
}

// TestTensorsForDevicesAreNotCompressed checks that a tensor without a target is not compressed if
// a channel could bring it to a device other than the CPU, and that it is if its target is the CPU.
func TestTensorsForDevicesAreNotCompressed(t *testing.T) {
	kind := npu.NewKind()
	t.Cleanup(kind.Close)
	client, server := connect(t, nativePath(), func(o *pipe.Options) {
		o.Channels = append(o.Channels, pipe.ChannelEntry{Name: npu.Name, Priority: 1, Factory: npu.New(kind, basic.New())})
		o.Kinds = []device.Kind{kind}
	})
	for i, c := range []struct {
		target device.Device
		saved  int
	}{{device.Device{}, 0}, {device.CPU(), 1}} {
		m := &pipe.Message{Tensors: []pipe.Tensor{{
			Buffer: device.Bytes(make([]byte, large)), TargetDevice: c.target, Compression: pipe.CompressionS2,
		}}}
		op := client.WriteAsync(testContext(t), m)
		expect(t, server, m)
		require.NoError(t, op.Wait(testContext(t)))
		require.EqualValues(t, c.saved, client.Stats().Compression.Sent.Parts, i)
		require.EqualValues(t, 1, client.Stats().Compression.Plain.Messages, i)
	}
}

// checkedContext is a context that ends when it has been checked n times.
type checkedContext struct {
	context.Context
	checks atomic.Int64
	done   chan struct{}
}

func endAfterChecks(checks int) *checkedContext {
	f := &checkedContext{Context: context.Background(), done: make(chan struct{})}
	f.checks.Store(int64(checks))
	return f
}

func (f *checkedContext) check() {
	if f.checks.Add(-1) == 0 {
		close(f.done)
	}
}

func (f *checkedContext) Done() <-chan struct{} {
	f.check()
	return f.done
}

func (f *checkedContext) Err() error {
	f.check()
	select {
	case <-f.done:
		return context.Canceled
	default:
		return nil
	}
}

// TestWriteCancelledDuringCompression checks that a write that is cancelled during compression
// sends nothing and releases its budget, and that a later write succeeds. It cancels at each point
// at which compression looks at the context.
func TestWriteCancelledDuringCompression(t *testing.T) {
	client, server := connect(t, nativePath())
	size := race.Pick(large, 600_000)
	m := dataMessage(contents["text"](size), pipe.CompressionS2, device.CPU())
	withdrawn := 0
	for checks := 1; ; checks++ {
		ctx := endAfterChecks(checks)
		op := client.WriteAsync(ctx, m)
		if err := op.Err(); err == nil {
			expect(t, server, m)
			require.NoError(t, op.Wait(testContext(t)))
			break
		}
		require.ErrorIs(t, op.Err(), context.Canceled)
		require.NotErrorIs(t, op.Err(), pipe.ErrCancelled, "nothing was sent")
		require.Zero(t, client.Stats().BytesInFlight)
		withdrawn++
	}
	require.GreaterOrEqual(t, withdrawn, 2*size/(256<<10), "once in each block")
}

// TestReadCancelledDuringDecompression checks that a Read that is cancelled during decompression
// fails alone: the write and the pipe are not affected. It cancels at each point at which Read
// looks at the context.
func TestReadCancelledDuringDecompression(t *testing.T) {
	client, server := connect(t, nativePath())
	for i, n := range []int{race.Pick(700_000, 300_000), 64 << 10} {
		m := dataMessage(contents[[]string{"float32", "text"}[i]](n), pipe.CompressionZstd, device.CPU())
		cancelled := 0
		for checks := 1; ; checks++ {
			op := client.WriteAsync(testContext(t), m)
			in := next(t, server)
			a := pipe.NewAllocation(in.Descriptor())
			err := in.Read(endAfterChecks(checks), a)
			if err == nil {
				same(t, m, in.Descriptor(), a)
				require.NoError(t, op.Wait(testContext(t)))
				break
			}
			require.ErrorIs(t, err, context.Canceled)
			if errors.Is(err, pipe.ErrCancelled) {
				cancelled++
			} else {
				same(t, m, in.Descriptor(), readInto(t, in, a)) // the first Read had not claimed the message
			}
			require.NoError(t, op.Wait(testContext(t)))
		}
		require.GreaterOrEqual(t, cancelled, 2*((n-1)/(256<<10)+1), "once in each block")
	}
	write(t, client, message(7, []int{5}, nil))
	expect(t, server, message(7, []int{5}, nil))
}

// TestCompressedWriteCancelled checks that a write whose compressed message has been announced can
// be cancelled: the peer's Read fails with ErrAborted, no bytes stay in flight, and the next write
// succeeds.
func TestCompressedWriteCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := connect(t, nativePath())
		ctx, cancel := cancelled(t)
		m := dataMessage(contents["float32"](large), pipe.CompressionZstd, device.CPU())
		op := client.WriteAsync(ctx, m)
		in := next(t, server)
		synctest.Wait()
		require.Positive(t, client.Stats().BytesInFlight)
		cancel()
		require.ErrorIs(t, op.Wait(t.Context()), pipe.ErrCancelled)
		require.ErrorIs(t, in.Read(t.Context(), pipe.NewAllocation(in.Descriptor())), pipe.ErrAborted)
		synctest.Wait()
		require.Zero(t, client.Stats().BytesInFlight)

		m.Deadline = time.Now().Add(time.Minute)
		op = client.WriteAsync(t.Context(), m)
		require.NoError(t, next(t, server).Discard(t.Context()))
		require.NoError(t, op.Wait(t.Context()))
		synctest.Wait()
		require.Zero(t, client.Stats().BytesInFlight)
	})
}

// TestCompressionCountsInFlight checks that the memory that compression takes counts as bytes in
// flight: a third writer waits for the budget although the three messages alone would fit.
func TestCompressionCountsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := connect(t, nativePath(), func(o *pipe.Options) { o.Limits.PipeBytesInFlight = 5 * large })
		m := &pipe.Message{Payloads: []pipe.Payload{{Data: contents["float32"](large), Compression: pipe.CompressionZstd}}}
		first := client.WriteAsync(t.Context(), m)
		second := client.WriteAsync(t.Context(), m)
		require.Greater(t, client.Stats().BytesInFlight, 3*large, "two payloads and their compressed forms")
		third := make(chan *pipe.WriteOp, 1)
		go func() { third <- client.WriteAsync(t.Context(), m) }()
		synctest.Wait()
		require.Empty(t, third)
		for range 3 {
			expect(t, server, m)
		}
		for _, op := range []*pipe.WriteOp{first, second, <-third} {
			require.NoError(t, op.Wait(t.Context()))
		}
		synctest.Wait()
		require.Zero(t, client.Stats().BytesInFlight)
	})
}

func TestChecksumOfCompressedMessages(t *testing.T) {
	client, server := connect(t, nativePath(), func(o *pipe.Options) { o.Checksum = true })
	for _, n := range []int{1000, large} {
		m := dataMessage(contents["text"](n), pipe.CompressionZstd, device.CPU())
		op := client.WriteAsync(testContext(t), m)
		expect(t, server, m)
		require.NoError(t, op.Wait(testContext(t)))
	}
	require.EqualValues(t, 4, client.Stats().Compression.Sent.Parts)
}

// unreachable is memory on cpu:0 that the host cannot address.
type unreachable int

func (u unreachable) Len() int { return int(u) }

// TestDecompressionNeedsHostMemory checks that Read rejects memory into which the host cannot
// decompress, with ErrAllocation, and that the message can then still be read.
func TestDecompressionNeedsHostMemory(t *testing.T) {
	client, server := connect(t, nativePath())
	m := requestCompression(&pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(contents["text"](1000))}}}, pipe.CompressionS2)
	write(t, client, m)
	in := next(t, server)
	elsewhere := device.On(device.CPU(), unreachable(1000), nil)
	require.ErrorIs(t, in.Read(testContext(t), pipe.Allocation{Tensors: []device.Buffer{elsewhere}}), pipe.ErrAllocation)
	same(t, m, in.Descriptor(), read(t, in))
}

// TestInlineTensorNeedsKind checks that Read rejects device memory for an inline tensor, with
// ErrAllocation, if Options.Kinds lacks the kind, and that the message can then still be read.
func TestInlineTensorNeedsKind(t *testing.T) {
	client, server := connect(t, nativePath())
	m := &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(contents["text"](1000))}}}
	write(t, client, m)
	in := next(t, server)
	elsewhere := device.On(device.CPU(), unreachable(1000), nil)
	require.ErrorIs(t, in.Read(testContext(t), pipe.Allocation{Tensors: []device.Buffer{elsewhere}}), pipe.ErrAllocation)
	same(t, m, in.Descriptor(), read(t, in))
}

func TestUnknownCompression(t *testing.T) {
	onPaths(t, []path{memPath(), nativePath()}, func(t *testing.T, client, _ *pipe.Pipe) {
		for _, m := range []*pipe.Message{message(1, []int{3}, nil), message(1, nil, []int{3})} {
			require.ErrorIs(t, client.Write(testContext(t), requestCompression(m, 9)), pipe.ErrMessage)
		}
	})
}

func TestCompressionText(t *testing.T) {
	for _, c := range append(codecs, pipe.CompressionNone) {
		text, err := c.MarshalText()
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(c), string(text))
		var back pipe.Compression
		require.NoError(t, back.UnmarshalText(text))
		require.Equal(t, c, back)
	}
	require.Error(t, new(pipe.Compression).UnmarshalText([]byte("gzip")))
}
