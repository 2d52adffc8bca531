package wire

import (
	"bytes"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/nop"
	"github.com/tensorpipe-go/tensorpipe/internal/wire/capture"
)

// conversation is a capture whose frames have been decoded, each as the message that the protocol has
// at its position. Decoding verifies that each message encodes to the captured bytes again.
type conversation struct {
	packet   Packet
	brochure *Brochure
	answer   *BrochureAnswer
	toServer []message // on the descriptor connection
	toClient []message
	replies  map[capture.Direction][]DescriptorReply
	channel  []capture.Connection // of the channel, without the first frame
	lanes    []capture.Connection // of mpt, in order, without the first frame
}

// message is a descriptor and its payloads.
type message struct {
	Descriptor
	payloads []string
}

func loadConversation(t *testing.T, name string) *conversation {
	c, err := capture.Load(filepath.Join("testdata", name+".json"))
	require.NoError(t, err)
	first := c.Connections[0]
	s := &conversation{
		packet:   packetOf(t, first.ToServer[0]),
		brochure: brochureOf(t, first.ToServer[1]),
		answer:   answerOf(t, first.ToClient[0]),
		toServer: messagesOf(t, first.ToServer[2:]),
		toClient: messagesOf(t, first.ToClient[1:]),
		replies:  map[capture.Direction][]DescriptorReply{},
	}
	s.requested(t, c.Connections[1:])
	return s
}

// requested sets s.replies and s.channel to the connections in conns that the server requested: the
// one for replies, and those of channels in the order of their ids in the answer. It sets s.lanes
// too.
func (s *conversation) requested(t *testing.T, conns []capture.Connection) {
	ids := slices.Concat(mapValues(s.answer.ChannelRegistrationIDs)...)
	s.channel = make([]capture.Connection, len(ids))
	for _, conn := range conns {
		if conn.Listener != 0 {
			continue
		}
		id := packetOf(t, conn.ToServer[0]).(RequestedConnection).RegistrationID
		conn.ToServer = conn.ToServer[1:]
		if id == s.answer.TransportRegistrationIDs[ReplyConnection] {
			s.replies[capture.ToServer] = repliesOf(t, conn.ToServer)
			s.replies[capture.ToClient] = repliesOf(t, conn.ToClient)
			continue
		}
		k := slices.Index(ids, id)
		require.GreaterOrEqual(t, k, 0, "id %d is in the answer", id)
		s.channel[k] = conn
	}
	s.laneConns(t, conns)
}

// laneConns sets s.lanes to the connections in conns that are lanes of the channel mpt, by their
// registration ids and without their first message. Lanes have listeners of their own, by which it
// recognizes them.
func (s *conversation) laneConns(t *testing.T, conns []capture.Connection) {
	for _, conn := range conns {
		if conn.Listener == 0 {
			continue
		}
		hello := helloOf(t, conn.ToServer[0]).(MPTClientHello)
		for len(s.lanes) <= int(hello.RegistrationID) {
			s.lanes = append(s.lanes, capture.Connection{})
		}
		conn.ToServer = conn.ToServer[1:]
		s.lanes[hello.RegistrationID] = conn
	}
}

func mapValues[K comparable, V any](m map[K]V) (values []V) {
	for _, v := range m {
		values = append(values, v)
	}
	return values
}

func messagesOf(t *testing.T, frames [][]byte) (list []message) {
	for len(frames) > 0 {
		m := message{Descriptor: *descriptorOf(t, frames[0])}
		frames = frames[1:]
		for _, p := range m.Payloads {
			require.Len(t, frames[0], int(p.Length), "the payload has the length announced")
			m.payloads = append(m.payloads, string(frames[0]))
			frames = frames[1:]
		}
		list = append(list, m)
	}
	return list
}

func repliesOf(t *testing.T, frames [][]byte) (list []DescriptorReply) {
	for _, f := range frames {
		list = append(list, *replyOf(t, f))
	}
	return list
}

func packetOf(t *testing.T, frame []byte) Packet {
	m, err := DecodePacket(frame, Limits{})
	return exact(t, frame, m, err)
}

func helloOf(t *testing.T, frame []byte) MPTHello {
	m, err := DecodeMPTHello(frame, Limits{})
	return exact(t, frame, m, err)
}

func descriptorOf(t *testing.T, frame []byte) *Descriptor {
	m := new(Descriptor)
	return exact(t, frame, m, DecodeDescriptor(frame, Limits{}, m))
}

func replyOf(t *testing.T, frame []byte) *DescriptorReply {
	m := new(DescriptorReply)
	return exact(t, frame, m, DecodeDescriptorReply(frame, Limits{}, m))
}

func brochureOf(t *testing.T, frame []byte) *Brochure {
	m, err := DecodeBrochure(frame, Limits{})
	require.NoError(t, err, dump(frame))
	again, err := DecodeBrochure(m.Append(nil), Limits{})
	require.NoError(t, err)
	require.Equal(t, m, again)
	sameButForOrder(t, frame, m)
	return m
}

func answerOf(t *testing.T, frame []byte) *BrochureAnswer {
	m, err := DecodeBrochureAnswer(frame, Limits{})
	require.NoError(t, err, dump(frame))
	again, err := DecodeBrochureAnswer(m.Append(nil), Limits{})
	require.NoError(t, err)
	require.Equal(t, m, again)
	sameButForOrder(t, frame, m)
	return m
}

// exact requires that err is nil and that m, which was decoded from frame, encodes to the same
// bytes. It returns m.
func exact[M encodable](t *testing.T, frame []byte, m M, err error) M {
	require.NoError(t, err, dump(frame))
	require.Equal(t, dump(frame), dump(m.Append(nil)))
	return m
}

// sameButForOrder requires that m, which was decoded from frame, encodes to the same bytes, except
// that the entries of a map may be in another order, because TensorPipe writes them in the order of
// its hash table. If no map has several entries, the bytes must be equal.
func sameButForOrder(t *testing.T, frame []byte, m encodable) {
	encoded := m.Append(nil)
	require.Len(t, encoded, len(frame))
	require.Equal(t, pieces(frame), pieces(encoded))
	if !severalEntries.MatchString(dump(frame)) {
		require.Equal(t, dump(frame), dump(encoded))
	}
}

var severalEntries = regexp.MustCompile(`map of ([2-9]|\d\d)`)

func dump(frame []byte) string {
	var out bytes.Buffer
	if err := nop.Dump(&out, frame); err != nil {
		panic(err)
	}
	return out.String()
}

// pieces returns the lines of the dump of frame, one for each part of the encoding, without offsets
// and sorted, so that frames can be compared regardless of order.
func pieces(frame []byte) []string {
	lines := strings.Split(dump(frame), "\n")
	for i, line := range lines {
		_, lines[i], _ = strings.Cut(line, " ")
	}
	slices.Sort(lines)
	return lines
}
