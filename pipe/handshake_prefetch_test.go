package pipe_test

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// partialClient is a client of the compatible dialect that has received the answer and has
// opened none of its further connections.
type partialClient struct {
	dial   func() transport.Conn
	first  transport.Conn
	answer *wire.BrochureAnswer
}

// connectPartial returns a context that listens, its listener, and a client that has sent its offer
// and received the answer, but has not opened any further connection.
func connectPartial(t *testing.T) (*pipe.Context, *pipe.Listener, *partialClient) {
	network := mem.NewNetwork()
	c := newContext(t, memPath(), func(o *pipe.Options) {
		o.Transports = []pipe.TransportEntry{{Name: "mem", Transport: mem.New(network)}}
	})
	l, err := c.Listen(t.Context(), "mem://here")
	require.NoError(t, err)
	s := &partialClient{dial: func() transport.Conn {
		conn, err := mem.New(network).Dial(t.Context(), "here")
		require.NoError(t, err)
		return conn
	}}
	s.first = s.dial()
	hello := wire.SpontaneousConnection{ContextName: "partialClient"}
	brochure := wire.Brochure{
		TransportDomainDescriptors: map[string]string{"mem": mem.New(network).DomainDescriptor()},
		ChannelDeviceDescriptors:   map[string]map[device.Device]string{"basic": basic.New().DeviceDescriptors()},
	}
	require.NoError(t, s.first.WriteFrames(transport.Frame{hello.Append(nil)}, transport.Frame{brochure.Append(nil)}))
	s.answer, err = wire.DecodeBrochureAnswer(nextFrame(t, s.first), wire.Limits{})
	require.NoError(t, err)
	return c, l, s
}

// join opens the further connections that the server's answer asks for and sends the id on each.
func (s *partialClient) join(t *testing.T) {
	ids := []uint64{s.answer.TransportRegistrationIDs[wire.ReplyConnection]}
	for _, id := range append(ids, s.answer.ChannelRegistrationIDs["basic"]...) {
		packet := wire.RequestedConnection{RegistrationID: id}
		require.NoError(t, s.dial().WriteFrames(transport.Frame{packet.Append(nil)}))
	}
}

// A packet that was lost once arrives before retransmitted. Within abandoned, much less than
// HandshakeTimeout, the handshake of a dead client ends.
const (
	retransmitted = 230 * time.Millisecond
	abandoned     = 400 * time.Millisecond
)

// TestClientDiesInHandshake checks that a server soon fails the handshake of a client that has
// died, instead of waiting for its further connections.
func TestClientDiesInHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, s := connectPartial(t)
		begin := time.Now()
		require.NoError(t, s.first.Close())
		for c.Stats().HandshakesInProgress > 0 {
			<-time.NewTimer(time.Millisecond).C
		}
		require.Less(t, time.Since(begin), abandoned) // in virtual time
		require.EqualValues(t, 1, c.Stats().HandshakesFailed)
	})
}

// onWrite is a writer that calls a function.
type onWrite func()

func (f onWrite) Write(p []byte) (int, error) {
	f()
	return len(p), nil
}

// TestFailureIsCountedBeforeSlotIsFree checks that a failed handshake is counted and logged before
// its slot is released.
func TestFailureIsCountedBeforeSlotIsFree(t *testing.T) {
	hello := wire.SpontaneousConnection{ContextName: "short"}
	for name, sent := range map[string][]transport.Frame{
		"no frame":    nil,
		"no brochure": {{hello.Append(nil)}},
	} {
		t.Run(name, func(t *testing.T) {
			network := mem.NewNetwork()
			var c *pipe.Context
			logged := make(chan pipe.ContextStats, 8)
			c = newContext(t, memPath(), func(o *pipe.Options) {
				o.Transports = []pipe.TransportEntry{{Name: "mem", Transport: mem.New(network)}}
				o.Logger = slog.New(slog.NewTextHandler(onWrite(func() { logged <- c.Stats() }), nil))
			})
			_, err := c.Listen(t.Context(), "mem://here")
			require.NoError(t, err)
			conn, err := mem.New(network).Dial(t.Context(), "here")
			require.NoError(t, err)
			require.NoError(t, conn.WriteFrames(sent...))
			require.NoError(t, conn.Close())
			s := testwait.Finish(t, logged)
			require.EqualValues(t, 1, s.HandshakesFailed)
			require.Equal(t, 1, s.HandshakesInProgress)
			require.NoError(t, c.Close())
			require.Empty(t, logged)
		})
	}
}

// TestEarlyFrames checks that frames that a client sends before the handshake has finished are not
// lost, even if the client has already ended that connection and opens its further connections
// late.
func TestEarlyFrames(t *testing.T) {
	message := wire.Descriptor{Metadata: []byte("early")}
	for name, sent := range map[string][]transport.Frame{
		"a message": {{message.Append(nil)}},
		"nothing":   nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, l, s := connectPartial(t)
				require.NoError(t, s.first.WriteFrames(sent...))
				require.NoError(t, s.first.CloseWrite())
				<-time.NewTimer(retransmitted).C
				s.join(t)
				p, err := l.Accept(t.Context())
				require.NoError(t, err)
				for range sent {
					in, err := p.Next(t.Context())
					require.NoError(t, err)
					require.Equal(t, "early", string(in.Descriptor().Metadata))
					require.NoError(t, in.Read(t.Context(), pipe.Allocation{}))
				}
				_, err = p.Next(t.Context())
				require.ErrorIs(t, err, pipe.ErrPeerClosed)
				p.Abort(nil)
			})
		})
	}
}
