package onesided_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/onesided"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// acknowledging is a protocol without memory, for an engine with Config.Acknowledge. Pull returns pulled.
type acknowledging struct{ pulled error }

func (acknowledging) Describe(device.Buffer) (onesided.Source, error) { return acknowledging{}, nil }
func (acknowledging) Revoke()                                         {}
func (acknowledging) Copied() error                                   { return nil }
func (p acknowledging) Pull(*onesided.Recv) error                     { return p.pulled }
func (acknowledging) Close()                                          {}

func (acknowledging) Append(dst []byte, f onesided.Frame) []byte {
	return binary.LittleEndian.AppendUint64(append(dst, byte(f.Kind)), f.ID)
}

// Decode describes tensors of 3 bytes.
func (acknowledging) Decode(_ int, text []byte) (onesided.Frame, error) {
	id := binary.LittleEndian.Uint64(text[1:])
	return onesided.Frame{Kind: onesided.Kind(text[0]), ID: id, Remote: onesided.Remote{Size: 3, Pieces: 1}}, nil
}

// acknowledge returns a running engine over conn, and a channel for the error of Broken.
func acknowledge(t *testing.T, p acknowledging, conn transport.Conn) (*onesided.Engine, <-chan error) {
	broken := make(chan error, 1)
	link := channel.Link{Native: true, Conns: []transport.Conn{conn}, Broken: func(err error) { broken <- err }}
	e := onesided.New(link, onesided.Config{
		Protocol: p, MaxFrame: 9, WrapError: func(err error) error { return err }, Streams: true, Acknowledge: true,
	})
	e.Run()
	t.Cleanup(func() { require.NoError(t, e.Close(nil)) })
	return e, broken
}

// gated is a connection that does not write frames of Acknowledged before open is closed.
type gated struct {
	transport.Conn
	reached, open chan struct{}
}

func (g gated) WriteFrames(frames ...transport.Frame) error {
	if onesided.Kind(frames[0][0][0]) == onesided.Acknowledged {
		close(g.reached)
		<-g.open
	}
	return g.Conn.WriteFrames(frames...)
}

// A Send whose tensor was copied completes once the receiver will get the acknowledgement, even if the
// caller then closes the channel, or aborts the Send before.
func TestSendIsDoneWhenAcknowledged(t *testing.T) {
	near, far := connect(t)
	g := gated{near, make(chan struct{}), make(chan struct{})}
	from, _ := acknowledge(t, acknowledging{}, g)
	to, _ := acknowledge(t, acknowledging{}, far)
	sent, sendErr := result()
	received, recvErr := result()
	to.Recv(1, device.Bytes(make([]byte, 3)), received)
	from.Send(1, device.Bytes(make([]byte, 3)), sent)
	testwait.Finish(t, testwait.Start(func() bool { <-g.reached; return true }))
	from.Abort(1, nil)
	require.Empty(t, sendErr)
	require.Empty(t, recvErr)
	close(g.open)
	require.NoError(t, testwait.Finish(t, sendErr))
	require.NoError(t, from.Close(nil))
	require.NoError(t, testwait.Finish(t, recvErr))
}

// Frames that break the protocol end the channel: an acknowledgement of a tensor that was not copied, a
// second description, and a description that Pull finds to be false.
func TestFalseFrames(t *testing.T) {
	frame := func(kind onesided.Kind) transport.Frame {
		return transport.Frame{acknowledging{}.Append(nil, onesided.Frame{Kind: kind, ID: 1})}
	}
	wrong := fmt.Errorf("%w: false", channel.ErrProtocol)
	for name, c := range map[string]struct {
		pulled error
		frames []transport.Frame
	}{
		"early acknowledgement": {nil, []transport.Frame{frame(onesided.Acknowledged)}},
		"false description":     {wrong, []transport.Frame{frame(onesided.Describe)}},
		"described twice":       {nil, []transport.Frame{frame(onesided.Describe), frame(onesided.Describe)}},
	} {
		t.Run(name, func(t *testing.T) {
			near, far := connect(t)
			e, broken := acknowledge(t, acknowledging{c.pulled}, near)
			done, err := result()
			e.Recv(1, device.Bytes(make([]byte, 3)), done)
			require.NoError(t, far.WriteFrames(c.frames...))
			require.ErrorIs(t, testwait.Finish(t, err), channel.ErrProtocol)
			require.ErrorIs(t, testwait.Finish(t, broken), channel.ErrProtocol)
			require.NoError(t, far.Close())
		})
	}
}
