package mpt_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// listening opens the listening end of a compatible channel with one lane over the transport over.
// It returns the end, its factory, and the lane that the end has announced to the test, which is
// its peer.
func listening(t *testing.T, over transport.Transport) (e *end, f *mpt.Factory, lane wire.MPTLane) {
	t.Helper()
	f = mpt.New(lanes(1, over))
	far, control := overMem()(t)
	e = openEnd(t, f, channel.RoleListen, control, nil)
	hello, err := wire.DecodeMPTHello(readFrame(t, far), wire.Limits{})
	require.NoError(t, err)
	return e, f, hello.(wire.MPTServerHello).Lanes[0]
}

// A connection to a port is closed if its first frame is not the ClientHello of an expected lane.
// The expected lane still connects after that.
func TestUnexpectedConnectionsAreClosed(t *testing.T) {
	over := mem.New(nil)
	e, f, lane := listening(t, over)
	server := wire.MPTServerHello{Lanes: []wire.MPTLane{lane}}
	for name, first := range map[string][]byte{
		"unknown id":     wire.MPTClientHello{RegistrationID: lane.RegistrationID + 1}.Append(nil),
		"server's hello": server.Append(nil),
		"nothing":        {},
		"garbage":        {0xff, 0, 1},
		"long":           make([]byte, 1<<20),
		"trailing byte":  append(wire.MPTClientHello{RegistrationID: lane.RegistrationID}.Append(nil), 0),
	} {
		conn, err := over.Dial(t.Context(), lane.Address)
		require.NoError(t, err)
		written := testwait.Start(func() error { return conn.WriteFrames(transport.Frame{first}) })
		_, err = conn.NextFrame()
		require.Error(t, err, name)
		_ = testwait.Finish(t, written)
		conn.Close()
	}
	honest := dialLane(t, over, lane)
	sent := send(e, 0, []byte("hello"))
	wantFrame(t, honest, []byte("hello"))
	require.NoError(t, testwait.Finish(t, sent))
	require.Zero(t, f.Ports())
}

// Of two connections with the number of the same lane, one becomes the lane and the other is
// closed.
func TestLaneConnectedTwice(t *testing.T) {
	over := mem.New(nil)
	e, _, lane := listening(t, over)
	hello := transport.Frame{wire.MPTClientHello{RegistrationID: lane.RegistrationID}.Append(nil)}
	spoken := make(chan bool, 2)
	var conns []transport.Conn
	for range 2 {
		conn, err := over.Dial(t.Context(), lane.Address)
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		conns = append(conns, conn)
	}
	for _, conn := range conns {
		go func() {
			_ = conn.WriteFrames(hello) // fails if the port has closed
			_, err := conn.NextFrame()
			spoken <- err == nil
		}()
	}
	sent := send(e, 0, []byte("hello"))
	require.NoError(t, testwait.Finish(t, sent))
	one, other := testwait.Finish(t, spoken), testwait.Finish(t, spoken)
	require.NotEqual(t, one, other)
}

// Connections that send nothing are limited to 64 and one for each expected lane, and closed after
// ten seconds. After that the expected lane can connect.
func TestConnectionsWithoutHello(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over := mem.New(nil)
		e, _, lane := listening(t, over)
		begun := time.Now()
		const most = 64 + 1 // plus one for the expected lane
		ended := make(chan time.Duration, 2*most)
		for range 2 * most {
			conn, err := over.Dial(t.Context(), lane.Address)
			require.NoError(t, err)
			go func() {
				_, err := conn.NextFrame()
				if err == nil {
					t.Error("a stranger was spoken to")
				}
				conn.Close()
				ended <- time.Since(begun)
			}()
		}
		synctest.Wait()
		require.Len(t, ended, most, "as many are closed at once")
		for range 2 * most {
			require.LessOrEqual(t, <-ended, 10*time.Second)
		}
		honest := dialLane(t, over, lane)
		sent := send(e, 0, []byte("hello"))
		wantFrame(t, honest, []byte("hello"))
		require.NoError(t, <-sent)
	})
}

// A dialling end ends the channel if the peer's announcement is malformed, has the wrong number of
// lanes, or names an address where no process listens.
func TestHostileServerHello(t *testing.T) {
	one := wire.MPTLane{Address: "nowhere", RegistrationID: 1}
	for name, c := range map[string]struct {
		hello []byte
		want  error
	}{
		"too few":          {wire.MPTServerHello{Lanes: []wire.MPTLane{one}}.Append(nil), channel.ErrProtocol},
		"too many":         {wire.MPTServerHello{Lanes: []wire.MPTLane{one, one, one}}.Append(nil), channel.ErrProtocol},
		"a client's hello": {wire.MPTClientHello{RegistrationID: 1}.Append(nil), channel.ErrProtocol},
		"garbage":          {[]byte{1, 2, 3}, channel.ErrProtocol},
		"long":             {make([]byte, 1<<20), channel.ErrProtocol},
		"nobody there":     {wire.MPTServerHello{Lanes: []wire.MPTLane{one, one}}.Append(nil), nil},
	} {
		control, far := overMem()(t)
		e := openEnd(t, mpt.New(lanes(2, mem.New(nil))), channel.RoleConnect, control, nil)
		received := recv(e, 0, make([]byte, 10))
		written := testwait.Start(func() error { return far.WriteFrames(transport.Frame{c.hello}) })
		err := testwait.Finish(t, e.broken)
		require.Error(t, err)
		if c.want != nil {
			require.ErrorIs(t, err, c.want, name)
		}
		require.Equal(t, err, testwait.Finish(t, received), name)
		_ = testwait.Finish(t, written)
	}
}

// word returns the encoding of a control frame of the native dialect: the byte kind, followed by
// numbers in little-endian order, each in the size of its type.
func word(kind byte, numbers ...any) []byte {
	p := []byte{kind}
	for _, n := range numbers {
		p, _ = binary.Append(p, binary.LittleEndian, n)
	}
	return p
}

// Control frames that are malformed or must not be sent now end a native channel with
// channel.ErrProtocol, and fail the tensor in progress.
func TestHostileControlFrames(t *testing.T) {
	const size = 2 << 20
	lane, id := uint16(0), uint64(5)
	lanesOf := func(n int) []byte {
		return append([]byte{2}, wire.MPTServerHello{Lanes: make([]wire.MPTLane, n)}.Append(nil)...)
	}
	for name, c := range map[string]struct {
		role  channel.Role
		words [][]byte
	}{
		"empty":                    {channel.RoleListen, [][]byte{{}}},
		"unknown kind":             {channel.RoleListen, [][]byte{{8}}},
		"short":                    {channel.RoleListen, [][]byte{word(5, uint32(1))}},
		"long":                     {channel.RoleListen, [][]byte{word(5, id, lane)}},
		"very long":                {channel.RoleListen, [][]byte{make([]byte, 1<<20)}},
		"unknown way":              {channel.RoleListen, [][]byte{word(4, id, byte(2))}},
		"lanes that there are not": {channel.RoleListen, [][]byte{word(4, id+1, byte(1))}},
		"offered twice":            {channel.RoleListen, [][]byte{word(4, id+1, byte(0)), word(4, id+1, byte(0))}},
		"order without lanes":      {channel.RoleListen, [][]byte{word(6, id, uint64(0), uint64(size), lane)}},
		"open no lanes":            {channel.RoleListen, [][]byte{word(1, uint16(0))}},
		"open twice":               {channel.RoleListen, [][]byte{word(1, uint16(1)), word(1, uint16(1))}},
		"opened before":            {channel.RoleListen, [][]byte{word(3, uint16(1))}},
		"opened without coming":    {channel.RoleListen, [][]byte{word(1, uint16(1)), word(3, uint16(1))}},
		"lanes from the client":    {channel.RoleListen, [][]byte{lanesOf(1)}},
		"open from the server":     {channel.RoleConnect, [][]byte{word(1, uint16(1))}},
		"opened from the server":   {channel.RoleConnect, [][]byte{word(3, uint16(1))}},
		"too many lanes":           {channel.RoleConnect, [][]byte{lanesOf(3)}},
		"lanes twice":              {channel.RoleConnect, [][]byte{lanesOf(0), lanesOf(0)}},
		"garbage for lanes":        {channel.RoleConnect, [][]byte{{2, 1, 2, 3}}},
		"client's hello for lanes": {channel.RoleConnect, [][]byte{append([]byte{2}, wire.MPTClientHello{}.Append(nil)...)}},
	} {
		t.Run(name, func(t *testing.T) {
			control, far := overMem()(t)
			go func() { _, _ = io.Copy(io.Discard, frames{far}) }()
			host, _ := hosts(t, overMem())
			e := openEnd(t, mpt.New(lanes(2, mem.New(nil))), c.role, control, host)
			sent := send(e, id, make([]byte, size))
			for _, w := range c.words {
				if far.WriteFrames(transport.Frame{w}) != nil {
					break // the end has closed the connection
				}
			}
			require.ErrorIs(t, testwait.Finish(t, e.broken), channel.ErrProtocol)
			require.ErrorIs(t, testwait.Finish(t, sent), channel.ErrProtocol)
		})
	}
}

// frames presents frames as a stream, so that they can be read.
type frames struct{ transport.Conn }

func (f frames) Read(p []byte) (int, error) {
	n, err := f.NextFrame()
	if err != nil {
		return 0, err
	}
	return 0, f.ReadBody(make([]byte, n))
}

// openedClient returns a listening end with two lanes that the test, its peer, has opened. The end
// has requested a tensor 9 of size bytes and has offered a tensor 5 of that size on the lanes; sent
// receives the outcome of that Send. far is the control connection at the test's side.
func openedClient(t *testing.T, size int) (e *end, far transport.Conn, sent <-chan error) {
	t.Helper()
	over := mem.New(nil)
	far, control := overMem()(t)
	host, _ := hosts(t, overMem())
	e = openEnd(t, mpt.New(lanes(2, over)), channel.RoleListen, control, host)
	require.NoError(t, far.WriteFrames(transport.Frame{word(1, uint16(2))}))
	text := readFrame(t, far)
	require.Equal(t, byte(2), text[0])
	hello, err := wire.DecodeMPTHello(text[1:], wire.Limits{})
	require.NoError(t, err)
	for _, lane := range hello.(wire.MPTServerHello).Lanes {
		conn := dialLane(t, over, lane)
		wantFrame(t, conn, wire.MPTClientHello{RegistrationID: lane.RegistrationID}.Append(nil))
	}
	recv(e, 9, make([]byte, size))
	require.NoError(t, far.WriteFrames(transport.Frame{word(3, uint16(2))}, transport.Frame{word(4, uint64(9), byte(1))}))
	for at := uint64(0); at < uint64(size); at += 512 << 10 { // its lanes are open
		w := readFrame(t, far)
		require.Equal(t, word(6, uint64(9), at, uint64(512<<10)), w[:25])
	}
	sent = send(e, 5, make([]byte, size))
	wantFrame(t, far, word(4, uint64(5), byte(1)))
	return e, far, sent
}

// A request for a slice that is not the next part of the tensor, is too short, or is for an unknown
// lane ends the channel with channel.ErrProtocol.
func TestHostileOrders(t *testing.T) {
	const size, min = 2 << 20, 512 << 10
	for name, order := range map[string][]any{
		"of nothing":     {uint64(5), uint64(0), uint64(0), uint16(0)},
		"beyond the end": {uint64(5), uint64(0), uint64(size + 1), uint16(0)},
		"absurd length":  {uint64(5), uint64(0), ^uint64(0), uint16(0)},
		"not the next":   {uint64(5), uint64(min), uint64(min), uint16(0)},
		"absurd offset":  {uint64(5), ^uint64(0), uint64(min), uint16(0)},
		"too little":     {uint64(5), uint64(0), uint64(min - 1), uint16(0)},
		"unknown lane":   {uint64(5), uint64(0), uint64(min), uint16(2)},
	} {
		t.Run(name, func(t *testing.T) {
			e, far, sent := openedClient(t, size)
			require.NoError(t, far.WriteFrames(transport.Frame{word(6, order...)}))
			require.ErrorIs(t, testwait.Finish(t, e.broken), channel.ErrProtocol)
			require.ErrorIs(t, testwait.Finish(t, sent), channel.ErrProtocol)
		})
	}
}

// slowWords is a transport whose accepted connections return from a write only when they are released,
// long after the peer has read the frame, with the given error.
type slowWords struct {
	transport.Transport
	released chan error
}

func (s slowWords) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	l, err := s.Transport.Listen(ctx, addr)
	return slowListener{l, s.released}, err
}

type slowListener struct {
	transport.Listener
	released chan error
}

func (l slowListener) Accept(ctx context.Context) (transport.Conn, error) {
	c, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return slowConn{c, c.(transport.Multiplexer), l.released}, nil
}

type slowConn struct {
	transport.Conn
	transport.Multiplexer
	released chan error
}

func (c slowConn) WriteFrames(frames ...transport.Frame) error {
	return cmp.Or(c.Conn.WriteFrames(frames...), <-c.released)
}

// beforeTold returns a listening end whose write of the confirmation of its only lane blocks until
// released receives or is closed. The test, its peer, has already reported the lane as open, and
// has offered the tensors 9 and 10 on it. received receives the outcome of the Recv of tensor 9, of
// size bytes. far is the control connection at the test's side.
func beforeTold(t *testing.T, size int, released chan error) (e *end, far transport.Conn, received <-chan error) {
	t.Helper()
	over := mem.New(nil)
	far, control := overMem()(t)
	host, _ := hosts(t, overMem())
	e = openEnd(t, mpt.New(lanes(1, slowWords{over, released})), channel.RoleListen, control, host)
	require.NoError(t, far.WriteFrames(transport.Frame{word(1, uint16(1))}))
	hello, err := wire.DecodeMPTHello(readFrame(t, far)[1:], wire.Limits{})
	require.NoError(t, err)
	lane := hello.(wire.MPTServerHello).Lanes[0]
	wantFrame(t, dialLane(t, over, lane), wire.MPTClientHello{RegistrationID: lane.RegistrationID}.Append(nil))
	received = recv(e, 9, make([]byte, size))
	for _, w := range [][]byte{word(3, uint16(1)), word(4, uint64(9), byte(1)), word(4, uint64(10), byte(1))} {
		require.NoError(t, far.WriteFrames(transport.Frame{w}))
	}
	return e, far, received
}

// If the client offers a tensor on its lanes before the server's write of the last confirmation has
// returned, the server requests the tensor once the write has returned.
func TestOfferBeforeLanesAreConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, slice = 1 << 20, 512 << 10
		released := make(chan error, 1)
		e, far, _ := beforeTold(t, size, released)
		synctest.Wait()
		require.Empty(t, e.broken)
		recv(e, 10, make([]byte, size)) // which has been offered too
		released <- nil
		for _, at := range []uint64{0, slice} {
			require.Equal(t, word(6, uint64(9), at, uint64(slice), uint16(0)), readFrame(t, far))
		}
		require.Empty(t, e.broken)
		require.NoError(t, e.Close(nil))
	})
}

// If the client offers a tensor on a lane whose confirmation then fails, the channel ends with
// channel.ErrProtocol.
func TestOfferOnLanesThatFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		released := make(chan error, 1)
		e, _, received := beforeTold(t, 1<<20, released)
		released <- errTest
		require.ErrorIs(t, <-e.broken, channel.ErrProtocol)
		require.ErrorIs(t, <-received, channel.ErrProtocol)
	})
}

// A request for a slice of an aborted tensor is ignored, and a later tensor can be offered.
func TestOrderOfAnAbortedTensor(t *testing.T) {
	const size = 2 << 20
	e, far, sent := openedClient(t, size)
	e.Abort(5, errTest)
	require.ErrorIs(t, testwait.Finish(t, sent), errTest)
	wantFrame(t, far, word(5, uint64(5)))
	require.NoError(t, far.WriteFrames(transport.Frame{word(6, uint64(5), uint64(0), uint64(size), uint16(0))}))
	again := send(e, 6, make([]byte, size))
	wantFrame(t, far, word(4, uint64(6), byte(1)))
	require.Empty(t, e.broken)
	require.NoError(t, e.Close(errTest))
	require.ErrorIs(t, testwait.Finish(t, again), errTest)
}

func FuzzHear(f *testing.F) {
	f.Add(word(1, uint16(1)))
	f.Add(word(4, uint64(5), byte(0)))
	f.Add(word(7))
	f.Add(word(6, uint64(5), uint64(0), uint64(1<<20), uint16(0)))
	f.Add(append([]byte{2}, wire.MPTServerHello{Lanes: make([]wire.MPTLane, 1)}.Append(nil)...))
	f.Fuzz(func(t *testing.T, text []byte) {
		control, far := overMem()(t)
		host, _ := hosts(t, overMem())
		e := openEnd(t, mpt.New(lanes(1, mem.New(nil))), channel.RoleListen, control, host)
		sent := send(e, 5, make([]byte, 1<<20))
		_ = far.WriteFrames(transport.Frame{text})
		require.NoError(t, far.Close())
		require.Error(t, testwait.Finish(t, e.broken))
		require.Error(t, testwait.Finish(t, sent))
	})
}
