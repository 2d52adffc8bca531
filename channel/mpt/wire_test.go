package mpt_test

import (
	"context"
	"encoding/hex"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

func TestDescriptors(t *testing.T) {
	f := mpt.New(mpt.Lanes{Count: 2, Transport: uv.New()}, mpt.Lanes{Count: 1, Transport: uv.New()})
	require.Equal(t, map[device.Device]string{device.CPU(): "3:uv:*:uv:*:uv:*"}, f.DeviceDescriptors())
	require.True(t, f.CanCommunicate("2:uv:*:uv:*", "2:uv:*:uv:*"))
	require.False(t, f.CanCommunicate("2:uv:*:uv:*", "3:uv:*:uv:*:uv:*"))
	require.Equal(t, 1, f.Connections(false))
	require.Equal(t, 1, f.Connections(true))
}

func TestViable(t *testing.T) {
	for name, groups := range map[string][]mpt.Lanes{
		"no group":     nil,
		"no lane":      {{Transport: uv.New()}},
		"negative":     {{Count: -1, Transport: uv.New()}, {Count: 2, Transport: uv.New()}},
		"no transport": {{Count: 1}},
		"too many":     {{Count: 100, Transport: uv.New()}, {Count: 100, Transport: uv.New()}},
	} {
		f := mpt.New(groups...)
		require.ErrorIs(t, f.Viable(), transport.ErrNotSupported, name)
		require.Empty(t, f.DeviceDescriptors(), name)
		conn, _ := overMem()(t)
		_, err := f.New(t.Context(), channel.Link{Conns: []transport.Conn{conn}, Peer: "worker1"}, channel.RoleListen)
		require.ErrorIs(t, err, transport.ErrNotSupported, name)
		_, err = conn.NextFrame()
		require.ErrorIs(t, err, transport.ErrClosed, "the connection was the channel's")
	}
}

func TestBound(t *testing.T) {
	for _, c := range []struct {
		size  int
		parts []int
	}{
		{8, []int{4, 4}}, {9, []int{4, 5}}, {8, []int{2, 3, 3}}, {9, []int{3, 3, 3}}, {1, []int{0, 0, 1}}, {0, []int{0, 0}},
	} {
		var got []int
		for i := range c.parts {
			got = append(got, mpt.Bound(c.size, i+1, len(c.parts))-mpt.Bound(c.size, i, len(c.parts)))
		}
		require.Equal(t, c.parts, got, "%d bytes", c.size)
	}
	require.Equal(t, math.MaxInt, mpt.Bound(math.MaxInt, 128, 128), "the product does not fit")
	require.Equal(t, math.MaxInt-math.MaxInt/128-1, mpt.Bound(math.MaxInt, 127, 128))
}

// wantFrame reads a frame of conn and fails the test unless its body equals want.
func wantFrame(t *testing.T, conn transport.Conn, want []byte) {
	t.Helper()
	require.Equal(t, hex.EncodeToString(want), hex.EncodeToString(readFrame(t, conn)))
}

func readFrame(t *testing.T, conn transport.Conn) []byte {
	t.Helper()
	n, err := conn.NextFrame()
	require.NoError(t, err)
	p := make([]byte, n)
	require.NoError(t, conn.ReadBody(p))
	return p
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	p, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	require.NoError(t, err)
	return p
}

// The dialling end sends and accepts the frames that were recorded from TensorPipe, for two lanes
// and tensors of 8, 0, 9 and 1 bytes in one direction and 9 bytes in the other.
func TestWireFormOfTheDiallingEnd(t *testing.T) {
	over := mem.New(nil)
	control, far := overMem()(t)
	ch := openEnd(t, mpt.New(lanes(2, over)), channel.RoleConnect, control, nil)
	var accepted []transport.Listener
	hello := wire.MPTServerHello{}
	for i, addr := range []string{"127.0.0.1:36001", "127.0.0.1:40861"} {
		l, err := over.Listen(t.Context(), addr)
		require.NoError(t, err)
		t.Cleanup(func() { l.Close() })
		accepted = append(accepted, l)
		hello.Lanes = append(hello.Lanes, wire.MPTLane{Address: addr, RegistrationID: uint64(i)})
	}
	text := unhex(t, "b8 00 b9 01 ba 02 b9 02 bd 0f 31 32 37 2e 30 2e 30 2e 31 3a 33 36 30 30 31 00 b9 02 bd 0f 31 32 37 2e 30 2e 30 2e 31 3a 34 30 38 36 31 01")
	require.Equal(t, text, hello.Append(nil))
	require.NoError(t, far.WriteFrames(transport.Frame{text}))

	var sent []<-chan error
	for i, s := range []string{"ABCDEFGH", "", "abcdefghi", "!"} {
		sent = append(sent, send(ch, uint64(i), []byte(s)))
	}
	var conns []transport.Conn
	for i, want := range [][]string{{"ABCD", "abcd", ""}, {"EFGH", "efghi", "!"}} {
		conn, err := accepted[i].Accept(t.Context())
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		wantFrame(t, conn, unhex(t, "b8 01 b9 01 0"+string(rune('0'+i))))
		for _, w := range want {
			wantFrame(t, conn, []byte(w))
		}
		conns = append(conns, conn)
	}
	for _, err := range sent {
		require.NoError(t, testwait.Finish(t, err))
	}
	got := make([]byte, 9)
	received := recv(ch, 0, got)
	require.NoError(t, conns[1].WriteFrames(transport.Frame{[]byte("efghi")}))
	require.NoError(t, conns[0].WriteFrames(transport.Frame{[]byte("ab"), []byte("cd")}))
	require.NoError(t, testwait.Finish(t, received))
	require.Equal(t, "abcdefghi", string(got))
}

// The listening end announces all lanes in one message, with one address for each group, accepts
// the lanes in any order, and divides tensors among them as TensorPipe does. It closes its ports
// after the last lane has connected.
func TestWireFormOfTheListeningEnd(t *testing.T) {
	over := mem.New(nil)
	f := mpt.New(lanes(1, over), lanes(2, over))
	far, control := overMem()(t)
	ch := openEnd(t, f, channel.RoleListen, control, nil)
	message, err := wire.DecodeMPTHello(readFrame(t, far), wire.Limits{})
	require.NoError(t, err)
	hello := message.(wire.MPTServerHello)
	require.Len(t, hello.Lanes, 3)
	require.NotEqual(t, hello.Lanes[0].Address, hello.Lanes[1].Address)
	require.Equal(t, hello.Lanes[1].Address, hello.Lanes[2].Address, "lanes of a group share a listener")
	require.Equal(t, 2, f.Ports())

	sent := send(ch, 0, []byte("ABCDEFGH"))
	conns := make([]transport.Conn, 3)
	for _, i := range []int{2, 0, 1} {
		conns[i] = dialLane(t, over, hello.Lanes[i])
	}
	for i, want := range []string{"AB", "CDE", "FGH"} {
		wantFrame(t, conns[i], []byte(want))
	}
	require.NoError(t, testwait.Finish(t, sent))
	move := recv(ch, 0, make([]byte, 1))
	for i, p := range [][]byte{nil, nil, {'x'}} {
		require.NoError(t, conns[i].WriteFrames(transport.Frame{p}))
	}
	require.NoError(t, testwait.Finish(t, move))
	require.Zero(t, f.Ports(), "all lanes have come")
}

// dialLane dials lane with the transport over, sends the lane's number as the first frame, as a C++
// peer does, and returns the connection, which is closed at the end of the test.
func dialLane(t *testing.T, over transport.Transport, lane wire.MPTLane) transport.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testwait.Limit)
	defer cancel()
	conn, err := over.Dial(ctx, lane.Address)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	hello := wire.MPTClientHello{RegistrationID: lane.RegistrationID}
	require.NoError(t, conn.WriteFrames(transport.Frame{hello.Append(nil)}))
	return conn
}
