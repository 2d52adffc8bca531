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

// requireRejected requires that Write of m fails with an error that matches ErrLimit and
// ErrMessage, and that the pipe between p and peer still carries messages. It returns the error of
// Write.
func requireRejected(t *testing.T, p, peer *pipe.Pipe, m *pipe.Message) error {
	t.Helper()
	err := p.Write(testContext(t), m)
	require.ErrorIs(t, err, pipe.ErrLimit)
	require.ErrorIs(t, err, pipe.ErrMessage)
	require.NotErrorIs(t, err, pipe.ErrProtocol)
	exchange(t, p, peer, message(1, []int{10}, []int{10}))
	return err
}

// tensorOf returns a message with one tensor in host memory, which consists of segments and is not
// copied. If target is zero the receiver chooses the device.
func tensorOf(target device.Device, segments ...[]byte) *pipe.Message {
	return &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Host(segments...), TargetDevice: target}}}
}

// TestPartExceedsFrameSize checks that in the compatible dialect Write rejects a message with a
// payload or tensor that is larger than a frame of the transport, with a FrameSizeError, and the
// pipe stays open. Parts of just that size arrive.
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

// TestPartOfFourGiBOverSharedMemory checks that Write rejects a tensor of 4 GiB per lane over
// shared memory in the compatible dialect, because it is larger than a frame of the transport. All
// segments of the tensor are the same memory, so that the test needs little.
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

// TestTensorTooScatteredForCMA checks that in the compatible dialect Write rejects, with
// ErrScattered, a tensor of several segments that is too large for the channel cma to gather.
func TestTensorTooScatteredForCMA(t *testing.T) {
	client, server := connect(t, pathNamed("mem+cma+compatible"))
	half := make([]byte, cma.MaxGather/2+1)
	for _, target := range []device.Device{device.CPU(), {}} {
		require.ErrorIs(t, requireRejected(t, client, server, tensorOf(target, half, half)), cma.ErrScattered)
	}
}

// TestDescriptorTooLargeForPeer checks that if the transport's peer must read a descriptor at once,
// Write in the compatible dialect rejects a message whose descriptor is larger than the transport
// allows, and the pipe stays open; payloads and tensors may have any size. In the native dialect
// such a message arrives.
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
