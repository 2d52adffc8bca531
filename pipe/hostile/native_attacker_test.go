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

// nativeMarker chooses the native dialect.
var nativeMarker = wire.Marker{MinVersion: wire.VersionNative, MaxVersion: wire.VersionNative, Features: wire.FeatureControl}

// bulkID is the id that the attacker hands out as a listener.
const bulkID = 20

// The words of yamux.
const (
	muxData = iota
	muxCredit
	muxPing
	muxFarewell
)

const (
	muxSYN = 1 << iota
	muxACK
	muxFIN
	muxRST
)

// The streams that every native pipe has.
const (
	messageStream = 1
	controlStream = 3
)

func muxWord(kind byte, flags uint16, stream, length uint32) []byte {
	p := binary.BigEndian.AppendUint16([]byte{0, kind}, flags)
	p = binary.BigEndian.AppendUint32(p, stream)
	return binary.BigEndian.AppendUint32(p, length)
}

// intruder is a native pipe between the victim and an attacker that speaks
// yamux itself, and grants nothing.
type intruder struct {
	t     testing.TB
	pipe  *pipe.Pipe // the victim's end
	first *raw
	even  bool // the attacker's new streams have even numbers

	// These open the bulk connection, or take the victim's. One that dials can
	// also ask for it and not wait to be welcome.
	bulk, askForBulk func() *raw

	mu      sync.Mutex
	changed chan struct{}
	credit  map[uint32]int    // what the attacker may still send
	heard   map[uint32][]byte // what the victim said
	over    bool              // it says no more
}

func newIntruder(t testing.TB, first *raw) *intruder {
	n := &intruder{t: t, first: first, changed: make(chan struct{}), heard: map[uint32][]byte{}}
	n.credit = map[uint32]int{messageStream: 256 << 10, controlStream: 256 << 10}
	return n
}

// inBothNativeRoles runs f on victims that were dialled and on victims that
// dial. One victim serves all calls of f in a role.
func inBothNativeRoles(t *testing.T, f func(t *testing.T, v *victim, open func(testing.TB) *intruder), adjust ...func(*pipe.Options)) {
	asWhom(t, overTCP, nativeRoles, f, adjust...)
}

var nativeRoles = map[string]func(testing.TB, *victim) *intruder{
	"attacker dials": dialNatively, "attacker listens": lureNatively,
}

// introduceNatively goes as far as the answer that chooses the native dialect.
func (v *victim) introduceNatively(t testing.TB) (*raw, *wire.BrochureAnswer) {
	t.Helper()
	b := goodBrochure()
	b.Mark(nativeMarker)
	first, answer := v.introduce(t, b)
	chosen, ok := answer.Marker()
	require.True(t, ok)
	require.Equal(t, nativeMarker, chosen)
	return first, answer
}

func dialNatively(t testing.TB, v *victim) *intruder {
	t.Helper()
	first, answer := v.introduceNatively(t)
	n := newIntruder(t, first)
	mine := request(answer.TransportRegistrationIDs[wire.BulkConnection])
	n.askForBulk = func() *raw { return v.visitWith(t, mine) }
	n.bulk = func() *raw {
		r := n.askForBulk()
		require.Equal(t, mine, r.read(), "the welcome")
		r.frame(mine)
		return r
	}
	n.first.send(muxWord(muxCredit, muxSYN, messageStream, 0), muxWord(muxCredit, muxSYN, controlStream, 0))
	n.listen()
	var err error
	n.pipe, err = v.listener.Accept(t.Context())
	require.NoError(t, err)
	return n
}

func lureNatively(t testing.TB, v *victim) *intruder {
	t.Helper()
	l := newTrap(t)
	result := l.lure(v)
	n := newIntruder(t, l.prey())
	n.even, n.bulk = true, func() *raw {
		r := l.take()
		require.Equal(t, request(bulkID), r.read())
		r.frame(request(bulkID))
		require.Equal(t, request(bulkID), r.read(), "the victim still wants it")
		return r
	}
	n.first.frame(nativeAnswer(l.Addr().String()).Append(nil))
	n.listen()
	d := <-result
	require.NoError(t, d.err)
	n.pipe = d.pipe
	n.await(func() bool { _, ok := n.heard[controlStream]; return ok || n.over })
	n.first.send(muxWord(muxCredit, muxACK, messageStream, 0), muxWord(muxCredit, muxACK, controlStream, 0))
	return n
}

func nativeAnswer(addr string) *wire.BrochureAnswer {
	a := goodAnswer(addr)
	a.TransportRegistrationIDs = map[uint64]uint64{wire.BulkConnection: bulkID}
	a.ChannelRegistrationIDs = map[string][]uint64{basic.Name: {}}
	a.Mark(nativeMarker)
	return a
}

// listen takes in what the victim says, until the end of the test.
func (n *intruder) listen() {
	var done sync.WaitGroup
	done.Go(func() {
		for n.hear() {
		}
	})
	n.t.Cleanup(func() {
		n.first.Close()
		done.Wait()
	})
}

func (n *intruder) hear() bool {
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
		n.heard[stream] = append(n.heard[stream], body...)
		if header[1] == muxCredit {
			n.credit[stream] += int(length)
		}
	}
	n.over = err != nil
	close(n.changed)
	n.changed = make(chan struct{})
	return err == nil
}

// await waits until something is so that is guarded by mu.
func (n *intruder) await(so func() bool) {
	n.t.Helper()
	timeout := time.After(patience)
	for {
		n.mu.Lock()
		ok, changed := so(), n.changed
		n.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			require.Fail(n.t, "the victim does not say what it should")
		}
	}
}

// say sends bytes on a stream, as the victim's window allows.
func (n *intruder) say(stream uint32, p []byte) {
	n.t.Helper()
	for len(p) > 0 {
		var size int
		n.await(func() bool {
			size = min(len(p), 64<<10, n.credit[stream])
			n.credit[stream] -= size
			return size > 0 || n.over
		})
		if size == 0 {
			return // nobody listens any more
		}
		n.first.send(muxWord(muxData, 0, stream, uint32(size)), p[:size])
		p = p[size:]
	}
}

// grant lets the victim say so much more on a stream.
func (n *intruder) grant(stream uint32, bytes int) {
	n.first.send(muxWord(muxCredit, 0, stream, uint32(bytes)))
}

func (n *intruder) message(m native.Message) { n.say(messageStream, m.Append(nil, false)) }
func (n *intruder) control(c native.Control) { n.say(controlStream, c.Append(nil, false)) }
func (n *intruder) finish(streams ...uint32) {
	for _, s := range streams {
		n.first.send(muxWord(muxData, muxFIN, s, 0))
	}
}

// hears waits for a control frame of a kind and returns the first.
func (n *intruder) hears(kind native.ControlKind) native.Control {
	n.t.Helper()
	return n.awaitControl(kind, 1)
}

// awaitControl waits for the count-th control frame of a kind and returns it.
func (n *intruder) awaitControl(kind native.ControlKind, count int) (found native.Control) {
	n.t.Helper()
	n.await(func() bool {
		all := n.saidOf(kind)
		if len(all) >= count {
			found = all[count-1]
		}
		return len(all) >= count || n.over || len(n.saidOf(native.Goodbye)) > 0
	})
	require.Equal(n.t, kind, found.Kind, "the victim hung up instead")
	return found
}

// saidOf returns the control frames of a kind so far. It needs mu.
func (n *intruder) saidOf(kind native.ControlKind) (out []native.Control) {
	for p := n.heard[controlStream]; len(p) >= native.HeaderSize; {
		h, err := native.DecodeControlHeader(p, native.Limits{})
		require.NoError(n.t, err)
		if len(p) < native.HeaderSize+h.Rest() {
			break
		}
		if native.ControlKind(h.Kind) == kind {
			c, err := native.DecodeControl(kind, p[native.HeaderSize:][:h.Rest()], native.Limits{})
			require.NoError(n.t, err)
			out = append(out, c)
		}
		p = p[native.HeaderSize+h.Rest():]
	}
	return out
}

// obeyed returns when the victim has dealt with all control frames so far. It has
// read the first message.
func (n *intruder) obeyed() {
	n.t.Helper()
	n.mu.Lock()
	before := len(n.saidOf(native.HaveRead))
	n.mu.Unlock()
	n.control(native.Control{Kind: native.WantRead})
	n.awaitControl(native.HaveRead, before+1)
}

// exchange shows that the attacker's pipe still works, both ways.
func (n *intruder) exchange() {
	n.t.Helper()
	n.message(inlineMessage("hi"))
	in, err := n.pipe.Next(n.t.Context())
	require.NoError(n.t, err)
	a := pipe.NewAllocation(in.Descriptor())
	require.NoError(n.t, in.Read(n.t.Context(), a))
	require.Equal(n.t, "hi", string(a.Payloads[0]))
	n.mu.Lock()
	before := len(n.heard[messageStream])
	n.mu.Unlock()
	require.NoError(n.t, n.pipe.Write(n.t.Context(), &pipe.Message{Metadata: []byte("well")}))
	n.await(func() bool { return len(n.heard[messageStream]) == before+native.HeaderSize+24+4 })
}

// leave ends the pipe in good order.
func (n *intruder) leave() {
	n.t.Helper()
	n.control(native.Control{Kind: native.Goodbye})
	n.finish(messageStream, controlStream)
	_, err := n.pipe.Next(n.t.Context())
	require.ErrorIs(n.t, err, pipe.ErrPeerClosed)
	require.NoError(n.t, n.pipe.Close())
}

func inlineMessage(payload string) native.Message {
	return native.Message{Payloads: []native.Payload{{Length: uint64(len(payload)), Inline: true, Data: []byte(payload)}}}
}

// largeMessage announces a payload and a tensor of n bytes each.
func largeMessage(n uint64) native.Message {
	return native.Message{
		Payloads: []native.Payload{{Length: n}},
		Tensors:  []native.Tensor{{Length: n, Source: device.CPU(), Target: device.CPU()}},
	}
}

// requireDown checks that the attacker's pipe has ended for these reasons, in a
// way that programs can tell; which connection noticed first may be chance.
func (n *intruder) requireDown(conns []string, reasons ...error) {
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
	n.first.Close() // the victim would give it a second to do so
	select {
	case <-n.pipe.Done():
	case <-time.After(patience):
		require.Fail(n.t, "the pipe never ended")
	}
	require.NoError(n.t, n.pipe.Close(), "closing what is broken")
}

func next(t testing.TB, p *pipe.Pipe) error {
	_, err := p.Next(t.Context())
	return err
}
