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

// TestReplay plays one end of each recording of two C++ processes against a
// pipe of ours in the other end's place. Ours must say the same, frame by frame
// and byte by byte.
func TestReplay(t *testing.T) {
	for _, name := range []string{"basic", "xth", "cma", "mpt", "mptbasic", "all"} {
		c, err := capture.Load("../internal/wire/testdata/" + name + ".json")
		require.NoError(t, err)
		t.Run(name+"/as client", func(t *testing.T) { replayAsClient(t, newStage(t, c)) })
		t.Run(name+"/as server", func(t *testing.T) { replayAsServer(t, newStage(t, c)) })
	}
}

// stage is where a recording is played.
type stage struct {
	recording *capture.Capture
	brochure  *wire.Brochure
	answer    *wire.BrochureAnswer
	network   *mem.Network
	conns     []transport.Conn // the recording's end of each connection
}

func newStage(t *testing.T, c *capture.Capture) *stage {
	s := &stage{recording: c, network: mem.NewNetwork(), conns: make([]transport.Conn, len(c.Connections))}
	var err error
	s.brochure, err = wire.DecodeBrochure(c.Connections[0].ToServer[1], wire.Limits{})
	require.NoError(t, err)
	s.answer, err = wire.DecodeBrochureAnswer(c.Connections[0].ToClient[0], wire.Limits{})
	require.NoError(t, err)
	return s
}

// options registers what the recorded processes had, in their order of
// preference: the recordings say which won.
func (s *stage) options(devices map[string]map[device.Device]string) Options {
	o := Options{Name: "clientctx"}
	for i, name := range []string{"uv", "shm"} {
		if domain, ok := s.brochure.TransportDomainDescriptors[name]; ok {
			o.Transports = append(o.Transports, TransportEntry{name, i, &stageTransport{
				Transport: mem.New(s.network), name: name, domain: domain, address: s.answer.Address,
			}})
		}
	}
	connections := map[string]int{"basic": 1, "mpt_uv": 1, "cma": 2, "xth": 2}
	for i, name := range []string{"basic", "mpt_uv", "cma", "xth"} {
		if d, ok := devices[name]; ok {
			o.Channels = append(o.Channels, ChannelEntry{Name: name, Priority: i, Factory: stageChannel(name, announced{descriptors: d, connections: connections[name]})})
		}
	}
	return o
}

// The application's part of every recording.
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

func replayAsClient(t *testing.T, s *stage) {
	ctx := t.Context()
	listener, err := mem.New(s.network).Listen(ctx, "stage")
	require.NoError(t, err)
	c, err := New(s.options(s.brochure.ChannelDeviceDescriptors))
	require.NoError(t, err)
	c.unmarked = true
	defer c.Close()
	defer listener.Close()

	played := make(chan struct{})
	go func() {
		defer close(played)
		defer s.hangUpIfFailed(t)
		s.play(t, capture.ToClient, func() transport.Conn {
			conn, err := listener.Accept(ctx)
			require.NoError(t, err)
			return conn
		})
	}()
	p, err := c.Dial(ctx, "uv://stage")
	if s.handshakeOnly() {
		<-played
		require.NoError(t, err)
		s.hangUp()
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
	s.hangUp()
}

func replayAsServer(t *testing.T, s *stage) {
	ctx := t.Context()
	c, err := New(s.options(serverDevices(s)))
	require.NoError(t, err)
	defer c.Close()
	urls := []string{"uv://stage-uv"}
	if _, ok := s.brochure.TransportDomainDescriptors["shm"]; ok {
		urls = append(urls, "shm://stage-shm")
	}
	l, err := c.Listen(ctx, urls...)
	require.NoError(t, err)
	var next uint64 // C++ counts
	l.meet.newID = func() uint64 { next++; return next - 1 }

	played := make(chan struct{})
	go func() {
		defer close(played)
		defer s.hangUpIfFailed(t)
		s.play(t, capture.ToServer, func() transport.Conn {
			conn, err := mem.New(s.network).Dial(ctx, "stage-uv")
			require.NoError(t, err)
			return conn
		})
	}()
	if s.handshakeOnly() {
		<-played
		s.hangUp()
		return
	}
	p, err := l.Accept(ctx)
	require.NoError(t, err)
	for _, m := range recordedMessages() {
		requireNext(t, p, m)
	}
	require.NoError(t, p.Write(ctx, recordedReply()))
	<-played
	s.hangUp()
}

// serverDevices are the server's descriptors: the recorded ones for the
// channels it chose, what the client said for the others. An xth descriptor
// names the process, so it differs between two.
func serverDevices(s *stage) map[string]map[device.Device]string {
	devices := maps.Clone(s.brochure.ChannelDeviceDescriptors)
	if len(devices) > 1 && devices["xth"] != nil {
		devices["xth"] = map[device.Device]string{device.CPU(): "another process"}
	}
	maps.Copy(devices, s.answer.ChannelDeviceDescriptors)
	return devices
}

// handshakeOnly reports whether the recording ends with the first connection,
// because everything behind the answer went over a transport the proxy did not
// see.
func (s *stage) handshakeOnly() bool { return s.answer.Transport != "uv" }

// hangUpIfFailed ends the other end's waiting after a difference was found.
func (s *stage) hangUpIfFailed(t *testing.T) {
	if t.Failed() {
		s.hangUp()
	}
}

func (s *stage) hangUp() {
	for _, c := range s.conns {
		if c != nil {
			c.Close()
		}
	}
}

// play goes through the recording in its order. Frames in the direction send
// are written, those of the other are read and compared. Connections are
// opened when they first appear.
func (s *stage) play(t *testing.T, send capture.Direction, open func() transport.Conn) {
	seen := make([]int, len(s.recording.Connections))
	for _, e := range s.recording.Events {
		if e.End || s.recording.Connections[e.Conn].Listener != 0 || s.silent(e.Conn, seen[e.Conn]) {
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

// silent reports whether a frame belongs to a channel that the stage only
// pretends to have: then the first frame, the packet, is all that is played.
func (s *stage) silent(conn, seen int) bool {
	isChannel := conn > 1
	return isChannel && seen > 0 && s.answer.ChannelRegistrationIDs["basic"] == nil
}

// compare holds a frame of ours against the recorded one. Maps of several
// entries have no fixed order on the wire.
func (s *stage) compare(t *testing.T, want, got []byte) {
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

// stageTransport is a mem transport under the names of a recording.
type stageTransport struct {
	*mem.Transport
	name, domain, address string
}

func (s *stageTransport) DomainDescriptor() string          { return s.domain }
func (s *stageTransport) CanCommunicate(remote string) bool { return remote == s.domain }

func (s *stageTransport) Dial(ctx context.Context, _ string) (transport.Conn, error) {
	return s.Transport.Dial(ctx, "stage")
}

func (s *stageTransport) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	l, err := s.Transport.Listen(ctx, addr)
	return stageListener{l, s.address}, err
}

type stageListener struct {
	transport.Listener
	address string
}

func (l stageListener) Addr() string { return l.address }

// stageChannel is the real channel where this project has one whose frames can
// be recorded; else one that knows the recorded tensors by their length.
func stageChannel(name string, a announced) channel.Factory {
	if name == basic.Name {
		return basic.New()
	}
	return silentFactory{announcedChannel{a}}
}

type silentFactory struct{ announcedChannel }

func (silentFactory) New(_ context.Context, link channel.Link, _ channel.Role) (channel.Channel, error) {
	c := &silentChannel{link: link}
	c.reader.Go(func() {
		_, err := link.Conns[0].NextFrame()
		go link.Broken(err)
	})
	return c, nil
}

type silentChannel struct {
	link   channel.Link
	reader sync.WaitGroup
}

func (*silentChannel) Send(_ uint64, _ device.Buffer, done func(error)) { go done(nil) }
func (*silentChannel) Abort(uint64, error)                              {}

func (*silentChannel) Recv(_ uint64, dst device.Buffer, done func(error)) {
	p, _ := dst.Contiguous()
	copy(p, map[int]string{8: "ABCDEFGH", 9: "abcdefghi"}[len(p)])
	go done(nil)
}

func (c *silentChannel) Close(error) error {
	err := channel.CloseLink(c.link)
	c.reader.Wait()
	return err
}
