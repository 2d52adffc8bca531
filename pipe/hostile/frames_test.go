package hostile_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// FuzzPeerBytes sends arbitrary frames over all connections of an open pipe.
// The input is a series of a connection, a length and so many bytes.
func FuzzPeerBytes(f *testing.F) {
	seed := func(frames ...[]byte) {
		var p []byte
		for i := range len(frames) / 2 {
			p = append(append(p, frames[2*i][0], byte(len(frames[2*i+1]))), frames[2*i+1]...)
		}
		f.Add(p)
	}
	desc, reply, channel, control := []byte{0}, []byte{1}, []byte{2}, []byte{3}
	seed(desc, payloadDescriptor(2), desc, []byte("hi"))
	seed(desc, tensorDescriptor(3), channel, []byte("abc"))
	seed(desc, goodDescriptor(), desc, []byte("abc"), channel, []byte("01234567"))
	seed(reply, goodReply(), control, want(0), control, have(0), control, goodbye("so long"))
	seed(desc, payloadDescriptor(1<<40), desc, payloadDescriptor(1<<20))

	s := newStudio(f)
	f.Fuzz(func(t *testing.T, input []byte) { s.shoot(t, input) })
}

// studio is a context that listens within this process.
type studio struct {
	transport transport.Transport
	listener  *pipe.Listener
	app       *application
}

func newStudio(t testing.TB) *studio {
	t.Helper()
	s := &studio{transport: mem.New(nil), app: &application{ctx: context.Background()}}
	c := newContext(t, pipe.Options{
		Name:         "victim",
		Transports:   []pipe.TransportEntry{{Name: "mem", Transport: s.transport}},
		Channels:     []pipe.ChannelEntry{{Name: basic.Name, Factory: basic.New()}},
		CloseTimeout: blink,
	})
	var err error
	s.listener, err = c.Listen(t.Context(), "mem://studio")
	require.NoError(t, err)
	return s
}

// shoot opens a pipe, sends the frames and hangs up. The application must get
// its pipe back.
func (s *studio) shoot(t testing.TB, input []byte) {
	conns := s.open(t)
	p, err := s.listener.Accept(t.Context())
	require.NoError(t, err)
	served := make(chan struct{})
	go func() {
		defer close(served)
		s.app.serve(p)
	}()
	for _, c := range conns {
		go discard(c)
	}
	for len(input) > 2 {
		n := min(int(input[1]), len(input)-2)
		_ = conns[int(input[0])%len(conns)].WriteFrames(transport.Frame{input[2 : 2+n]}) // the victim may have hung up
		input = input[2+n:]
	}
	for _, c := range conns {
		_ = c.CloseWrite()
	}
	select {
	case <-served:
	case <-time.After(patience):
		require.Fail(t, "the application never got its pipe back")
	}
	for _, c := range conns {
		c.Close()
	}
}

// open returns the connections of a pipe: descriptor, reply, channel, control.
func (s *studio) open(t testing.TB) []transport.Conn {
	t.Helper()
	b := goodBrochure()
	b.TransportDomainDescriptors = map[string]string{"mem": s.transport.DomainDescriptor()}
	b.Mark(marker)
	first := s.dial(t, hello(), b.Append(nil))
	n, err := first.NextFrame()
	require.NoError(t, err)
	frame := make([]byte, n)
	require.NoError(t, first.ReadBody(frame))
	answer, err := wire.DecodeBrochureAnswer(frame, wire.Limits{})
	require.NoError(t, err)
	ids := answer.TransportRegistrationIDs
	return []transport.Conn{
		first,
		s.dial(t, request(ids[wire.ReplyConnection])),
		s.dial(t, request(answer.ChannelRegistrationIDs[basic.Name][0])),
		s.dial(t, request(ids[wire.ControlConnection])),
	}
}

func (s *studio) dial(t testing.TB, frames ...[]byte) transport.Conn {
	t.Helper()
	c, err := s.transport.Dial(t.Context(), "studio")
	require.NoError(t, err)
	for f := range slices.Values(frames) {
		require.NoError(t, c.WriteFrames(transport.Frame{f}))
	}
	return c
}

// discard takes what the victim says, so that it is not held up.
func discard(c transport.Conn) {
	var piece [256]byte
	for {
		n, err := c.NextFrame()
		for ; n > 0 && err == nil; n -= min(n, int64(len(piece))) {
			err = c.ReadBody(piece[:min(n, int64(len(piece)))])
		}
		if err != nil {
			return
		}
	}
}
