package hostile_test

import (
	"encoding/binary"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// nativeMarker offers the native dialect.
var nativeMarker = wire.Marker{MinVersion: wire.VersionNative, MaxVersion: wire.VersionNative, Features: wire.FeatureControl}

// bulkID is the registration id of the bulk connection in the attacker's answer as a listener.
const bulkID = 20

// The frame types of yamux.
const (
	muxData = iota
	muxCredit
	muxPing
	muxGoAway
)

const (
	muxSYN = 1 << iota
	muxACK
	muxFIN
	muxRST
)

// The streams of every native pipe.
const (
	messageStream = 1
	controlStream = 3
)

func muxHeader(kind byte, flags uint16, stream, length uint32) []byte {
	p := binary.BigEndian.AppendUint16([]byte{0, kind}, flags)
	p = binary.BigEndian.AppendUint32(p, stream)
	return binary.BigEndian.AppendUint32(p, length)
}

// nativeAttack is an open native pipe between the victim and an attacker that implements yamux
// itself and sends no window updates.
type nativeAttack struct {
	t     testing.TB
	pipe  *pipe.Pipe // the victim's end
	first *raw
	even  bool // the attacker's new streams have even numbers

	// bulk opens or accepts the bulk connection. askForBulk, for clients only,
	// requests it without waiting for the victim's answer.
	bulk, askForBulk func() *raw

	mu       sync.Mutex
	changed  chan struct{}
	credit   map[uint32]int    // by stream, bytes that the attacker may still send
	received map[uint32][]byte // by stream, bytes that the victim sent
	ended    bool              // the victim's direction has ended
}

func newNativeAttack(t testing.TB, first *raw) *nativeAttack {
	n := &nativeAttack{t: t, first: first, changed: make(chan struct{}), received: map[uint32][]byte{}}
	n.credit = map[uint32]int{messageStream: 256 << 10, controlStream: 256 << 10}
	return n
}

// inBothNativeRoles runs f as inBothRoles does, for pipes in the native dialect: twice as parallel
// subtests, with attackers that dial and with attackers that listen. Each call of open opens a new
// pipe. One victim serves all of them in a role.
func inBothNativeRoles(t *testing.T, f func(t *testing.T, v *victim, open func(testing.TB) *nativeAttack), adjust ...func(*pipe.Options)) {
	inRoles(t, overTCP, nativeRoles, f, adjust...)
}

var nativeRoles = map[string]func(testing.TB, *victim) *nativeAttack{
	"attacker dials": dialNative, "attacker listens": acceptNative,
}

// sendNativeOffer sends a client's offer of the native dialect on a new connection, requires that
// the victim's answer chooses that dialect, and returns the connection and the answer.
func (v *victim) sendNativeOffer(t testing.TB) (*raw, *wire.BrochureAnswer) {
	t.Helper()
	b := goodBrochure()
	b.Mark(nativeMarker)
	first, answer := v.sendOffer(t, b)
	chosen, ok := answer.Marker()
	require.True(t, ok)
	require.Equal(t, nativeMarker, chosen)
	return first, answer
}

func dialNative(t testing.TB, v *victim) *nativeAttack {
	t.Helper()
	first, answer := v.sendNativeOffer(t)
	n := newNativeAttack(t, first)
	mine := request(answer.TransportRegistrationIDs[wire.BulkConnection])
	n.askForBulk = func() *raw { return v.dialRawWith(t, mine) }
	n.bulk = func() *raw {
		r := n.askForBulk()
		require.Equal(t, mine, r.read(), "the victim's answer")
		r.frame(mine)
		return r
	}
	n.first.send(muxHeader(muxCredit, muxSYN, messageStream, 0), muxHeader(muxCredit, muxSYN, controlStream, 0))
	n.startReading()
	var err error
	n.pipe, err = v.listener.Accept(t.Context())
	require.NoError(t, err)
	return n
}

func acceptNative(t testing.TB, v *victim) *nativeAttack {
	t.Helper()
	l := newRogueListener(t)
	result := l.dialFrom(v)
	n := newNativeAttack(t, l.acceptOffer())
	n.even, n.bulk = true, func() *raw {
		r := l.acceptRaw()
		require.Equal(t, request(bulkID), r.read())
		r.frame(request(bulkID))
		require.Equal(t, request(bulkID), r.read(), "the victim confirms it")
		return r
	}
	n.first.frame(nativeAnswer(l.Addr().String()).Append(nil))
	n.startReading()
	d := <-result
	require.NoError(t, d.err)
	n.pipe = d.pipe
	n.waitFor(func() bool { _, ok := n.received[controlStream]; return ok || n.ended })
	n.first.send(muxHeader(muxCredit, muxACK, messageStream, 0), muxHeader(muxCredit, muxACK, controlStream, 0))
	return n
}

func nativeAnswer(addr string) *wire.BrochureAnswer {
	a := goodAnswer(addr)
	a.TransportRegistrationIDs = map[uint64]uint64{wire.BulkConnection: bulkID}
	a.ChannelRegistrationIDs = map[string][]uint64{basic.Name: {}}
	a.Mark(nativeMarker)
	return a
}

// startReading starts a goroutine that reads and records the victim's frames until the connection
// ends. The connection is closed at the end of the test.
func (n *nativeAttack) startReading() {
	var done sync.WaitGroup
	done.Go(func() {
		for n.readFrame() {
		}
	})
	n.t.Cleanup(func() {
		n.first.Close()
		done.Wait()
	})
}

func (n *nativeAttack) readFrame() bool {
	var header [12]byte
	_, err := io.ReadFull(n.first, header[:])
	stream, length := binary.BigEndian.Uint32(header[4:]), binary.BigEndian.Uint32(header[8:])
	var body []byte
	if err == nil && header[1] == muxData {
		body = make([]byte, length)
		_, err = io.ReadFull(n.first, body)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil {
		n.received[stream] = append(n.received[stream], body...)
		if header[1] == muxCredit {
			n.credit[stream] += int(length)
		}
	}
	n.ended = err != nil
	close(n.changed)
	n.changed = make(chan struct{})
	return err == nil
}

// waitFor blocks until condition returns true, and fails the test if that takes too long. It calls
// condition with n.mu held, again after each frame of the victim.
func (n *nativeAttack) waitFor(condition func() bool) {
	n.t.Helper()
	timeout := time.After(testTimeout)
	for {
		n.mu.Lock()
		ok, changed := condition(), n.changed
		n.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			require.Fail(n.t, "the victim does not send what is expected")
		}
	}
}

// sendOn sends p to the victim on the given stream, and waits where the victim's flow control
// requires that. If the connection ends first, sendOn returns without sending the rest of p.
func (n *nativeAttack) sendOn(stream uint32, p []byte) {
	n.t.Helper()
	for len(p) > 0 {
		var size int
		n.waitFor(func() bool {
			size = min(len(p), 64<<10, n.credit[stream])
			n.credit[stream] -= size
			return size > 0 || n.ended
		})
		if size == 0 {
			return // the connection has ended
		}
		n.first.send(muxHeader(muxData, 0, stream, uint32(size)), p[:size])
		p = p[size:]
	}
}

// grant sends the victim credit for the given number of further bytes on a stream.
func (n *nativeAttack) grant(stream uint32, bytes int) {
	n.first.send(muxHeader(muxCredit, 0, stream, uint32(bytes)))
}

func (n *nativeAttack) message(m native.Message) { n.sendOn(messageStream, m.Append(nil, false)) }
func (n *nativeAttack) control(c native.Control) { n.sendOn(controlStream, c.Append(nil, false)) }
func (n *nativeAttack) closeStreams(streams ...uint32) {
	for _, s := range streams {
		n.first.send(muxHeader(muxData, muxFIN, s, 0))
	}
}

// waitControl waits for the first control frame of the given kind that the victim sends on this
// pipe, and returns it. It fails the test if the victim closes the pipe instead.
func (n *nativeAttack) waitControl(kind native.ControlKind) native.Control {
	n.t.Helper()
	return n.nthControl(kind, 1)
}

// nthControl waits until the victim has sent count control frames of the given kind on this pipe,
// and returns the last of these. It fails the test if the victim closes the pipe instead.
func (n *nativeAttack) nthControl(kind native.ControlKind, count int) (found native.Control) {
	n.t.Helper()
	n.waitFor(func() bool {
		all := n.controlFrames(kind)
		if len(all) >= count {
			found = all[count-1]
		}
		return len(all) >= count || n.ended || len(n.controlFrames(native.Goodbye)) > 0
	})
	require.Equal(n.t, kind, found.Kind, "the victim closed the pipe instead")
	return found
}

// controlFrames returns all complete control frames of the given kind that the victim has sent so
// far. The caller holds n.mu.
func (n *nativeAttack) controlFrames(kind native.ControlKind) (out []native.Control) {
	for p := n.received[controlStream]; len(p) >= native.HeaderSize; {
		h, err := native.DecodeControlHeader(p, native.Limits{})
		require.NoError(n.t, err)
		if len(p) < native.HeaderSize+h.Remaining() {
			break
		}
		if native.ControlKind(h.Kind) == kind {
			c, err := native.DecodeControl(kind, p[native.HeaderSize:][:h.Remaining()], native.Limits{})
			require.NoError(n.t, err)
			out = append(out, c)
		}
		p = p[native.HeaderSize+h.Remaining():]
	}
	return out
}

// syncControl blocks until the victim has handled all control frames that were sent before. It
// requests the confirmation of message 0, which the victim's application must have read, and waits
// for it.
func (n *nativeAttack) syncControl() {
	n.t.Helper()
	n.mu.Lock()
	before := len(n.controlFrames(native.HaveRead))
	n.mu.Unlock()
	n.control(native.Control{Kind: native.WantRead})
	n.nthControl(native.HaveRead, before+1)
}

// exchange sends one message in each direction and requires that both arrive.
func (n *nativeAttack) exchange() {
	n.t.Helper()
	n.message(inlineMessage("hi"))
	in, err := n.pipe.Next(n.t.Context())
	require.NoError(n.t, err)
	a := pipe.NewAllocation(in.Descriptor())
	require.NoError(n.t, in.Read(n.t.Context(), a))
	require.Equal(n.t, "hi", string(a.Payloads[0]))
	n.mu.Lock()
	before := len(n.received[messageStream])
	n.mu.Unlock()
	require.NoError(n.t, n.pipe.Write(n.t.Context(), &pipe.Message{Metadata: []byte("well")}))
	n.waitFor(func() bool { return len(n.received[messageStream]) == before+native.HeaderSize+24+4 })
}

// closeOrderly ends the attacker's directions with a close frame, and requires that the victim sees
// an orderly close and that its Close succeeds.
func (n *nativeAttack) closeOrderly() {
	n.t.Helper()
	n.control(native.Control{Kind: native.Goodbye})
	n.closeStreams(messageStream, controlStream)
	_, err := n.pipe.Next(n.t.Context())
	require.ErrorIs(n.t, err, pipe.ErrPeerClosed)
	require.NoError(n.t, n.pipe.Close())
}

func inlineMessage(payload string) native.Message {
	return native.Message{Payloads: []native.Payload{{Length: uint64(len(payload)), Inline: true, Data: []byte(payload)}}}
}

// largeMessage returns the header of a message with a payload and a tensor of n bytes each, neither
// of which is inline.
func largeMessage(n uint64) native.Message {
	return native.Message{
		Payloads: []native.Payload{{Length: n}},
		Tensors:  []native.Tensor{{Length: n, Source: device.CPU(), Target: device.CPU()}},
	}
}

// requireBrokenNative requires that the victim's pipe has failed with an error that matches reasons
// and names one of the connections conns. It discards messages that arrived before, and then closes
// both ends.
func (n *nativeAttack) requireBrokenNative(conns []string, reasons ...error) {
	n.t.Helper()
	drop(n.t, n.pipe)
	for _, err := range []error{next(n.t, n.pipe), n.pipe.Write(n.t.Context(), &pipe.Message{})} {
		for _, reason := range reasons {
			require.ErrorIs(n.t, err, reason)
		}
		var e *pipe.Error
		require.ErrorAs(n.t, err, &e)
		require.Contains(n.t, e.Peer, "127.0.0.1:")
		require.Contains(n.t, conns, e.Conn, "%v", err)
	}
	n.first.Close() // the victim would wait a second for it
	select {
	case <-n.pipe.Done():
	case <-time.After(testTimeout):
		require.Fail(n.t, "the pipe never ended")
	}
	require.NoError(n.t, n.pipe.Close(), "closing a broken pipe")
}

func next(t testing.TB, p *pipe.Pipe) error {
	_, err := p.Next(t.Context())
	return err
}
