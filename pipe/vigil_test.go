package pipe_test

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// stutterer is a peer of the compatible dialect, which has the answer to its
// brochure and none of its further connections.
type stutterer struct {
	dial   func() transport.Conn
	first  transport.Conn
	answer *wire.BrochureAnswer
}

// meetStutterer returns a context that listens, and such a peer of it.
func meetStutterer(t *testing.T) (*pipe.Context, *pipe.Listener, *stutterer) {
	network := mem.NewNetwork()
	c := newContext(t, memPath(), func(o *pipe.Options) {
		o.Transports = []pipe.TransportEntry{{Name: "mem", Transport: mem.New(network)}}
	})
	l, err := c.Listen(t.Context(), "mem://here")
	require.NoError(t, err)
	s := &stutterer{dial: func() transport.Conn {
		conn, err := mem.New(network).Dial(t.Context(), "here")
		require.NoError(t, err)
		return conn
	}}
	s.first = s.dial()
	hello := wire.SpontaneousConnection{ContextName: "stutterer"}
	brochure := wire.Brochure{
		TransportDomainDescriptors: map[string]string{"mem": mem.New(network).DomainDescriptor()},
		ChannelDeviceDescriptors:   map[string]map[device.Device]string{"basic": basic.New().DeviceDescriptors()},
	}
	require.NoError(t, s.first.WriteFrames(transport.Frame{hello.Append(nil)}, transport.Frame{brochure.Append(nil)}))
	s.answer, err = wire.DecodeBrochureAnswer(nextFrame(t, s.first), wire.Limits{})
	require.NoError(t, err)
	return c, l, s
}

// join makes all further connections.
func (s *stutterer) join(t *testing.T) {
	ids := []uint64{s.answer.TransportRegistrationIDs[wire.ReplyConnection]}
	for _, id := range append(ids, s.answer.ChannelRegistrationIDs["basic"]...) {
		packet := wire.RequestedConnection{RegistrationID: id}
		require.NoError(t, s.dial().WriteFrames(transport.Frame{packet.Append(nil)}))
	}
}

// What was lost once on its way has come after late; within forgotten a peer that died is
// forgotten, long before a second is over.
const (
	comesLate = 230 * time.Millisecond
	forgotten = 400 * time.Millisecond
)

// A peer that dies in the handshake is not waited for.
func TestDeadInHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, s := meetStutterer(t)
		begin := time.Now()
		require.NoError(t, s.first.Close())
		for c.Stats().HandshakesInProgress > 0 {
			<-time.NewTimer(time.Millisecond).C
		}
		require.Less(t, time.Since(begin), forgotten) // in virtual time
		require.EqualValues(t, 1, c.Stats().HandshakesFailed)
	})
}

// onWrite is called when something is logged.
type onWrite func()

func (f onWrite) Write(p []byte) (int, error) {
	f()
	return len(p), nil
}

// A handshake that fails is counted before its place is free.
func TestFailedInItsPlace(t *testing.T) {
	hello := wire.SpontaneousConnection{ContextName: "brief"}
	for name, said := range map[string][]transport.Frame{
		"without a word": nil,
		"without offers": {{hello.Append(nil)}},
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
			require.NoError(t, conn.WriteFrames(said...))
			require.NoError(t, conn.Close())
			s := patience.Finish(t, logged)
			require.EqualValues(t, 1, s.HandshakesFailed)
			require.Equal(t, 1, s.HandshakesInProgress)
			require.NoError(t, c.Close())
			require.Empty(t, logged)
		})
	}
}

// What a peer says before the handshake is over is not lost, also where it has
// ended the connection since, and the others come late.
func TestEarlyWords(t *testing.T) {
	message := wire.Descriptor{Metadata: []byte("early")}
	for name, said := range map[string][]transport.Frame{
		"a message": {{message.Append(nil)}},
		"nothing":   nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, l, s := meetStutterer(t)
				require.NoError(t, s.first.WriteFrames(said...))
				require.NoError(t, s.first.CloseWrite())
				<-time.NewTimer(comesLate).C
				s.join(t)
				p, err := l.Accept(t.Context())
				require.NoError(t, err)
				for range said {
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
