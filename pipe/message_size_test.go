package pipe_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// requireRejected requires that p rejects the message for its size and stays open, and
// returns the error.
func requireRejected(t *testing.T, p, peer *pipe.Pipe, m *pipe.Message) error {
	t.Helper()
	err := p.Write(testContext(t), m)
	require.ErrorIs(t, err, pipe.ErrLimit)
	require.ErrorIs(t, err, pipe.ErrMessage)
	require.NotErrorIs(t, err, pipe.ErrProtocol)
	exchange(t, p, peer, message(1, []int{10}, []int{10}))
	return err
}

// tensorOf returns a message with one tensor; the zero target leaves the device to the
// receiver.
func tensorOf(target device.Device, segments ...[]byte) *pipe.Message {
	return &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Host(segments...), TargetDevice: target}}}
}

// A message with a part that is larger than a frame is rejected, and the pipe stays open.
func TestPartExceedsFrameSize(t *testing.T) {
	const largest = 100_000
	c := both(t, mem.NewNetwork(), func(o *pipe.Options) {
		o.Dialect = pipe.DialectCompatible
		for i, e := range o.Transports {
			o.Transports[i].Transport = boundedTransport{e.Transport, largest}
		}
	})
	client, server := connectContexts(t, c, c, "mem://")
	exchange(t, client, server, message(1, []int{largest}, []int{largest, largest}, device.CPU(), device.Device{}))
	for _, m := range []*pipe.Message{
		message(1, []int{largest + 1}, nil),
		message(1, nil, []int{largest + 1}, device.CPU()),
		message(1, nil, []int{largest + 1}, device.Device{}),
		message(1, nil, []int{10, largest + 1}, device.CPU(), device.CPU()),
	} {
		var size *transport.FrameSizeError
		require.ErrorAs(t, requireRejected(t, client, server, m), &size)
		require.Equal(t, transport.FrameSizeError{Size: largest + 1, Largest: largest}, *size)
	}
}

// boundedTransport bounds the size of the frames of its connections, in bytes.
type boundedTransport struct {
	transport.Transport
	largest int64
}

func (b boundedTransport) FrameLimits() transport.FrameLimits {
	return transport.FrameLimits{Max: b.largest}
}

func (b boundedTransport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := b.Transport.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return boundedConn{c, c.(transport.Multiplexer), b.largest}, nil
}

type boundedConn struct {
	transport.Conn
	transport.Multiplexer
	largest int64
}

func (b boundedConn) FrameLimits() transport.FrameLimits {
	return transport.FrameLimits{Max: b.largest}
}

// Frames over shared memory are smaller than 4 GiB. All segments of the tensor are the
// same memory, so that the test needs little.
func TestPartOfFourGiBOverSharedMemory(t *testing.T) {
	for name, lanes := range map[string]int{"basic": 1, "mpt": 2} {
		t.Run(name, func(t *testing.T) {
			client, server := connect(t, pathNamed("shm+"+name+"+compatible"))
			segments := make([][]byte, 64*lanes)
			for i, segment := 0, make([]byte, 64<<20); i < len(segments); i++ {
				segments[i] = segment
			}
			for _, target := range []device.Device{device.CPU(), {}} {
				var size *transport.FrameSizeError
				require.ErrorAs(t, requireRejected(t, client, server, tensorOf(target, segments...)), &size)
			}
		})
	}
}

// In the compatible dialect cma can describe one piece of memory only. It gathers the
// segments of a tensor up to a bound.
func TestTensorTooScatteredForCMA(t *testing.T) {
	client, server := connect(t, pathNamed("mem+cma+compatible"))
	half := make([]byte, cma.MaxGather/2+1)
	for _, target := range []device.Device{device.CPU(), {}} {
		require.ErrorIs(t, requireRejected(t, client, server, tensorOf(target, half, half)), cma.ErrScattered)
	}
}

// A peer may have to read a descriptor at once. A message with a larger one is rejected
// and the pipe stays open; payloads and tensors may have any size. In the native dialect
// there are no such peers.
func TestDescriptorTooLargeForPeer(t *testing.T) {
	const largest = 10_000
	for dialect, rejected := range map[pipe.Dialect]bool{pipe.DialectCompatible: true, pipe.DialectNative: false} {
		t.Run(string(dialect), func(t *testing.T) {
			c := both(t, mem.NewNetwork(), func(o *pipe.Options) {
				o.Dialect = dialect
				for i, e := range o.Transports {
					o.Transports[i].Transport = wholeTransport{e.Transport, largest}
				}
			})
			client, server := connectContexts(t, c, c, "mem://")
			err := client.Write(testContext(t), &pipe.Message{Metadata: pattern(largest, 1)})
			if rejected {
				require.ErrorIs(t, err, pipe.ErrLimit)
				require.ErrorContains(t, err, "10000")
			} else {
				require.NoError(t, err)
				expect(t, server, &pipe.Message{Metadata: pattern(largest, 1)})
			}
			many := message(1, []int{2 * largest}, make([]int, largest/30))
			for i := range many.Tensors {
				many.Tensors[i].Metadata = nil
			}
			for _, m := range []*pipe.Message{{Metadata: pattern(largest-20, 1)}, message(1, []int{2 * largest}, []int{2 * largest}), many} {
				op := client.WriteAsync(testContext(t), m)
				expect(t, server, m)
				require.NoError(t, op.Wait(testContext(t)))
			}
		})
	}
}

// wholeTransport makes connections whose peers read frames at once, up to a largest size.
type wholeTransport struct {
	transport.Transport
	largest int
}

func (w wholeTransport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := w.Transport.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return wholeConn{c, c.(transport.Multiplexer), w.largest}, nil
}

type wholeConn struct {
	transport.Conn
	transport.Multiplexer
	largest int
}

func (c wholeConn) FrameLimits() transport.FrameLimits {
	return transport.FrameLimits{MaxWhole: c.largest}
}
