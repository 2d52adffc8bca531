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

// refuses has p refuse a message for its size, and go on with its peer.
func refuses(t *testing.T, p, peer *pipe.Pipe, m *pipe.Message) error {
	t.Helper()
	err := p.Write(testContext(t), m)
	require.ErrorIs(t, err, pipe.ErrLimit)
	require.ErrorIs(t, err, pipe.ErrMessage)
	require.NotErrorIs(t, err, pipe.ErrProtocol)
	exchange(t, p, peer, message(1, []int{10}, []int{10}))
	return err
}

// tensorOf is a message with one tensor, for target or for where its receiver wants it.
func tensorOf(target device.Device, segments ...[]byte) *pipe.Message {
	return &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Host(segments...), TargetDevice: target}}}
}

// A part that is longer than a frame can be is refused, with all of its message, and the
// pipe goes on.
func TestPartThatNoFrameCanHold(t *testing.T) {
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
		require.ErrorAs(t, refuses(t, client, server, m), &size)
		require.Equal(t, transport.FrameSizeError{Size: largest + 1, Largest: largest}, *size)
	}
}

// boundedTransport has connections with frames of so many bytes at most.
type boundedTransport struct {
	transport.Transport
	largest int64
}

func (b boundedTransport) LargestFrame() int64 { return b.largest }

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

func (b boundedConn) LargestFrame() int64 { return b.largest }

// Shared memory takes frames of less than 4 GiB. A tensor whose segments are all the same
// memory takes little of it.
func TestPartOfFourGiBOverSharedMemory(t *testing.T) {
	for name, lanes := range map[string]int{"basic": 1, "mpt": 2} {
		t.Run(name, func(t *testing.T) {
			client, server := connect(t, pathNamed("shm+"+name+"+"+pipe.DialectCompatible))
			segments := make([][]byte, 64*lanes)
			for i, segment := 0, make([]byte, 64<<20); i < len(segments); i++ {
				segments[i] = segment
			}
			for _, target := range []device.Device{device.CPU(), {}} {
				var size *transport.FrameSizeError
				require.ErrorAs(t, refuses(t, client, server, tensorOf(target, segments...)), &size)
			}
		})
	}
}

// In the compatible dialect cma has a word for one piece of memory alone, and copies
// together what is not too large for that.
func TestTensorTooScatteredForCMA(t *testing.T) {
	client, server := connect(t, pathNamed("mem+cma+"+pipe.DialectCompatible))
	half := make([]byte, cma.MaxGather/2+1)
	for _, target := range []device.Device{device.CPU(), {}} {
		require.ErrorIs(t, refuses(t, client, server, tensorOf(target, half, half)), cma.ErrScattered)
	}
}
