package pipe

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/internal/wire/capture"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// TestReplay replays one end of each recording of two C++ processes to a pipe in place of
// the other end. The pipe must send the recorded frames, byte for byte.
func TestReplay(t *testing.T) {
	for _, name := range []string{"basic", "xth", "cma", "mpt", "mptbasic", "all"} {
		c, err := capture.Load("../internal/wire/testdata/" + name + ".json")
		require.NoError(t, err)
		t.Run(name+"/as client", func(t *testing.T) { replayAsClient(t, newReplay(t, c)) })
		t.Run(name+"/as server", func(t *testing.T) { replayAsServer(t, newReplay(t, c)) })
	}
}

// replay is a recording that is being replayed.
type replay struct {
	recording *capture.Capture
	brochure  *wire.Brochure
	answer    *wire.BrochureAnswer
	network   *mem.Network
	conns     []transport.Conn // the recording's end of each connection
}

func newReplay(t *testing.T, c *capture.Capture) *replay {
	s := &replay{recording: c, network: mem.NewNetwork(), conns: make([]transport.Conn, len(c.Connections))}
	var err error
	s.brochure, err = wire.DecodeBrochure(c.Connections[0].ToServer[1], wire.Limits{})
	require.NoError(t, err)
	s.answer, err = wire.DecodeBrochureAnswer(c.Connections[0].ToClient[0], wire.Limits{})
	require.NoError(t, err)
	return s
}

// options returns options whose transports and channels are those of the recorded processes, with
// priorities that lead to the recorded choices. devices has the device descriptors by channel;
// channels without one are left out.
func (s *replay) options(devices map[string]map[device.Device]string) Options {
	o := Options{Name: "clientctx"}
	for i, name := range []string{"uv", "shm"} {
		if domain, ok := s.brochure.TransportDomainDescriptors[name]; ok {
			o.Transports = append(o.Transports, TransportEntry{name, i, &replayTransport{
				Transport: mem.New(s.network), name: name, domain: domain, address: s.answer.Address,
			}})
		}
	}
	connections := map[string]int{"basic": 1, "mpt_uv": 1, "cma": 2, "xth": 2}
	for i, name := range []string{"basic", "mpt_uv", "cma", "xth"} {
		if d, ok := devices[name]; ok {
			o.Channels = append(o.Channels, ChannelEntry{Name: name, Priority: i, Factory: replayChannel(name, announced{descriptors: d, connections: connections[name]})})
		}
	}
	return o
}

// recordedMessages returns new messages that equal those that the client has written in every
// recording.
func recordedMessages() []*Message {
	cpu := device.CPU()
	tensor := func(data string, target device.Device) []Tensor {
		return []Tensor{{Buffer: device.Bytes([]byte(data)), TargetDevice: target, Metadata: []byte("tm")}}
	}
	return []*Message{
		{Metadata: []byte("meta0"), Payloads: []Payload{{Data: []byte("hello payload"), Metadata: []byte("pm")}}},
		{Metadata: []byte("meta1"), Tensors: tensor("ABCDEFGH", device.Device{})},
		{Metadata: []byte("meta2"), Tensors: tensor("abcdefghi", cpu)},
		{Payloads: []Payload{{}}, Tensors: tensor("", cpu)},
	}
}

func recordedReply() *Message {
	return &Message{
		Metadata: []byte("reply"),
		Payloads: []Payload{{Data: []byte("pong")}},
		Tensors:  []Tensor{{Buffer: device.Bytes([]byte("abcdefghi")), Metadata: []byte("tm")}},
	}
}

func replayAsClient(t *testing.T, s *replay) {
	ctx := t.Context()
	listener, err := mem.New(s.network).Listen(ctx, "replay")
	require.NoError(t, err)
	c, err := New(s.options(s.brochure.ChannelDeviceDescriptors))
	require.NoError(t, err)
	c.hideMarker = true
	defer c.Close()
	defer listener.Close()

	played := make(chan struct{})
	go func() {
		defer close(played)
		defer s.closeIfFailed(t)
		s.play(t, capture.ToClient, func() transport.Conn {
			conn, err := listener.Accept(ctx)
			require.NoError(t, err)
			return conn
		})
	}()
	p, err := c.Dial(ctx, "uv://replay")
	if s.handshakeOnly() {
		<-played
		require.NoError(t, err)
		s.closeConns()
		return
	}
	require.NoError(t, err)
	var ops []*WriteOp
	for _, m := range recordedMessages() {
		ops = append(ops, p.WriteAsync(ctx, m))
	}
	requireNext(t, p, recordedReply())
	<-played
	for _, op := range ops {
		require.NoError(t, op.Wait(ctx))
	}
	s.closeConns()
}

func replayAsServer(t *testing.T, s *replay) {
	ctx := t.Context()
	c, err := New(s.options(serverDevices(s)))
	require.NoError(t, err)
	defer c.Close()
	urls := []string{"uv://replay-uv"}
	if _, ok := s.brochure.TransportDomainDescriptors["shm"]; ok {
		urls = append(urls, "shm://replay-shm")
	}
	l, err := c.Listen(ctx, urls...)
	require.NoError(t, err)
	var next uint64 // C++ counts
	l.matcher.newID = func() uint64 { next++; return next - 1 }

	played := make(chan struct{})
	go func() {
		defer close(played)
		defer s.closeIfFailed(t)
		s.play(t, capture.ToServer, func() transport.Conn {
			conn, err := mem.New(s.network).Dial(ctx, "replay-uv")
			require.NoError(t, err)
			return conn
		})
	}()
	if s.handshakeOnly() {
		<-played
		s.closeConns()
		return
	}
	p, err := l.Accept(ctx)
	require.NoError(t, err)
	for _, m := range recordedMessages() {
		requireNext(t, p, m)
	}
	require.NoError(t, p.Write(ctx, recordedReply()))
	<-played
	s.closeConns()
}

// serverDevices returns the server's device descriptors by channel: the recorded ones for the
// channels that the server chose, and the client's for the others. The descriptor of an unchosen
// xth differs from the client's, because xth works only within one process.
func serverDevices(s *replay) map[string]map[device.Device]string {
	devices := maps.Clone(s.brochure.ChannelDeviceDescriptors)
	if len(devices) > 1 && devices["xth"] != nil {
		devices["xth"] = map[device.Device]string{device.CPU(): "another process"}
	}
	maps.Copy(devices, s.answer.ChannelDeviceDescriptors)
	return devices
}

// handshakeOnly reports whether the recording has only the frames of the handshake: the processes
// then used a transport other than uv, which was not recorded.
func (s *replay) handshakeOnly() bool { return s.answer.Transport != "uv" }

// closeIfFailed closes the test's connections if the test has failed, so that the pipe under test
// fails too and does not wait for more frames.
func (s *replay) closeIfFailed(t *testing.T) {
	if t.Failed() {
		s.closeConns()
	}
}

func (s *replay) closeConns() {
	for _, c := range s.conns {
		if c != nil {
			c.Close()
		}
	}
}

// play replays the events of the recording in order. It sends the recorded frames of the direction
// send, and requires that the pipe sends the other frames. It calls open for each connection when
// its first frame occurs.
func (s *replay) play(t *testing.T, send capture.Direction, open func() transport.Conn) {
	seen := make([]int, len(s.recording.Connections))
	for _, e := range s.recording.Events {
		if e.End || s.recording.Connections[e.Conn].Listener != 0 || s.isSkipped(e.Conn, seen[e.Conn]) {
			continue
		}
		if s.conns[e.Conn] == nil {
			s.conns[e.Conn] = open()
		}
		seen[e.Conn]++
		if e.Dir == send {
			require.NoError(t, s.conns[e.Conn].WriteFrames(transport.Frame{e.Frame}))
			continue
		}
		got, err := readFrame(s.conns[e.Conn], nil, 1<<20, nil)
		require.NoError(t, err)
		s.compare(t, e.Frame, got)
	}
}

// isSkipped reports whether play must leave out a frame of the connection conn, of which it has
// replayed seen frames. Of a connection of a channel that the test only imitates, play replays only
// the first frame.
func (s *replay) isSkipped(conn, seen int) bool {
	isChannel := conn > 1
	return isChannel && seen > 0 && s.answer.ChannelRegistrationIDs["basic"] == nil
}

// compare requires that got, a frame that the pipe has sent, equals the recorded frame want.
// Messages of the handshake need only be equal after decoding and have the same length, because the
// entries of maps have no fixed order on the wire.
func (s *replay) compare(t *testing.T, want, got []byte) {
	first := s.recording.Connections[0]
	switch {
	case slices.Equal(want, first.ToServer[1]):
		b, err := wire.DecodeBrochure(got, wire.Limits{})
		require.NoError(t, err)
		require.Equal(t, s.brochure, b)
		require.Len(t, got, len(want))
	case slices.Equal(want, first.ToClient[0]):
		a, err := wire.DecodeBrochureAnswer(got, wire.Limits{})
		require.NoError(t, err)
		require.Equal(t, s.answer, a)
		require.Len(t, got, len(want))
	default:
		require.Equal(t, fmt.Sprintf("% x", want), fmt.Sprintf("% x", got))
	}
}

func requireNext(t *testing.T, p *Pipe, m *Message) {
	in, err := p.Next(t.Context())
	require.NoError(t, err)
	d, a := in.Descriptor(), NewAllocation(in.Descriptor())
	require.NoError(t, in.Read(t.Context(), a))
	require.Equal(t, string(m.Metadata), string(d.Metadata))
	require.Len(t, d.Payloads, len(m.Payloads))
	for i, want := range m.Payloads {
		require.Equal(t, string(want.Data), string(a.Payloads[i]))
		require.Equal(t, string(want.Metadata), string(d.Payloads[i].Metadata))
	}
	require.Len(t, d.Tensors, len(m.Tensors))
	for i, want := range m.Tensors {
		sent, _ := want.Buffer.Contiguous()
		got, _ := a.Tensors[i].Contiguous()
		require.Equal(t, string(sent), string(got))
		require.Equal(t, want.TargetDevice, d.Tensors[i].TargetDevice)
		require.Equal(t, string(want.Metadata), string(d.Tensors[i].Metadata))
	}
}

// replayTransport is a mem transport with the name and domain of a recorded one.
type replayTransport struct {
	*mem.Transport
	name, domain, address string
}

func (s *replayTransport) DomainDescriptor() string          { return s.domain }
func (s *replayTransport) CanCommunicate(remote string) bool { return remote == s.domain }

func (s *replayTransport) Dial(ctx context.Context, _ string) (transport.Conn, error) {
	return s.Transport.Dial(ctx, "replay")
}

func (s *replayTransport) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	l, err := s.Transport.Listen(ctx, addr)
	return replayListener{l, s.address}, err
}

type replayListener struct {
	transport.Listener
	address string
}

func (l replayListener) Addr() string { return l.address }

// replayChannel returns the channel with this name for a replay: the real channel for basic, whose
// frames are recorded, and otherwise an imitation that identifies the recorded tensors by their
// lengths.
func replayChannel(name string, a announced) channel.Factory {
	if name == basic.Name {
		return basic.New()
	}
	return imitationFactory{announcedChannel{a}}
}

type imitationFactory struct{ announcedChannel }

func (imitationFactory) New(_ context.Context, link channel.Link, _ channel.Role) (channel.Channel, error) {
	c := &imitationChannel{link: link}
	c.reader.Go(func() {
		_, err := link.Conns[0].NextFrame()
		go link.Broken(err)
	})
	return c, nil
}

type imitationChannel struct {
	link   channel.Link
	reader sync.WaitGroup
}

func (*imitationChannel) Send(_ uint64, _ device.Buffer, done func(error)) { go done(nil) }
func (*imitationChannel) Abort(uint64, error)                              {}

func (*imitationChannel) Recv(_ uint64, dst device.Buffer, done func(error)) {
	p, _ := dst.Contiguous()
	copy(p, map[int]string{8: "ABCDEFGH", 9: "abcdefghi"}[len(p)])
	go done(nil)
}

func (c *imitationChannel) Close(error) error {
	err := channel.CloseLink(c.link)
	c.reader.Wait()
	return err
}
