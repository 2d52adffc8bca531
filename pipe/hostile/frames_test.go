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

// FuzzPeerBytes sends arbitrary frames over the connections of an open pipe, and requires that the
// calls of the victim's application end. The input is a sequence of frames, each given by the index
// of a connection, a length, and that number of bytes.
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
	seed(reply, goodReply(), control, wantRead(0), control, haveRead(0), control, closeFrame("reason"))
	seed(desc, payloadDescriptor(1<<40), desc, payloadDescriptor(1<<20))

	s := newMemVictim(f)
	f.Fuzz(func(t *testing.T, input []byte) { s.attackOnce(t, input) })
}

// memVictim is a context that listens within this process.
type memVictim struct {
	transport transport.Transport
	listener  *pipe.Listener
	app       *application
}

func newMemVictim(t testing.TB) *memVictim {
	t.Helper()
	s := &memVictim{transport: mem.New(nil), app: &application{ctx: context.Background()}}
	c := newContext(t, pipe.Options{
		Name:         "victim",
		Transports:   []pipe.TransportEntry{{Name: "mem", Transport: s.transport}},
		Channels:     []pipe.ChannelEntry{{Name: basic.Name, Factory: basic.New()}},
		CloseTimeout: replayTimeout,
	})
	var err error
	s.listener, err = c.Listen(t.Context(), "mem://studio")
	require.NoError(t, err)
	return s
}

// attackOnce opens a pipe to the victim, sends the frames that input describes, and ends the
// connections. It requires that the calls of the victim's application on that pipe end, and then
// closes the connections.
func (s *memVictim) attackOnce(t testing.TB, input []byte) {
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
		_ = conns[int(input[0])%len(conns)].WriteFrames(transport.Frame{input[2 : 2+n]}) // fails if the victim has closed it
		input = input[2+n:]
	}
	for _, c := range conns {
		_ = c.CloseWrite()
	}
	select {
	case <-served:
	case <-time.After(testTimeout):
		require.Fail(t, "a call of the application stays blocked")
	}
	for _, c := range conns {
		c.Close()
	}
}

// open opens a pipe to the victim as a client and returns its connections, in this order:
// descriptor, reply, channel, control.
func (s *memVictim) open(t testing.TB) []transport.Conn {
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

func (s *memVictim) dial(t testing.TB, frames ...[]byte) transport.Conn {
	t.Helper()
	c, err := s.transport.Dial(t.Context(), "studio")
	require.NoError(t, err)
	for f := range slices.Values(frames) {
		require.NoError(t, c.WriteFrames(transport.Frame{f}))
	}
	return c
}

// discard reads and drops frames of c until the connection ends or fails, so that the victim never
// blocks in a write to c.
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
