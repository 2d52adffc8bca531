package hostile_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/internal/wire/capture"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// replayTimeout is how long an attacker that replays a mutated recording waits for bytes that may
// never arrive.
const replayTimeout = 10 * time.Millisecond

// event is a part of a recorded conversation: a frame on one connection.
type event struct {
	conn  int
	bytes []byte
	reply bool       // it is sent after a message of the other end
	then  func(*raw) // called after the bytes are sent to end the connection, or nil
}

// Ids in a recording that are replaced by those of the victim's answer.
const (
	recordedReplyID = 0xa1a2a3a4a5a6a7a8
	recordedBasicID = 0xb1b2b3b4b5b6b7b8
)

// clientEvents returns what a recorded C++ client has sent, with recordedReplyID and
// recordedBasicID as the ids of its further connections.
func clientEvents(t testing.TB) []event {
	return events(t, capture.ToServer, map[int][]byte{
		1: request(recordedReplyID),
		2: request(recordedBasicID),
	})
}

// listenerEvents returns what a recorded C++ listener has sent, but with a new answer in which addr
// is its address.
func listenerEvents(t testing.TB, addr string) []event {
	answer := goodAnswer(addr)
	return events(t, capture.ToClient, map[int][]byte{0: answer.Append(nil)})
}

// events returns what one end of the recording has sent, dir being the direction. The first frame
// of a connection whose number is in first is replaced by the frame from there. events removes the
// used entries from first.
func events(t testing.TB, dir capture.Direction, first map[int][]byte) []event {
	t.Helper()
	c, err := capture.Load("../../internal/wire/testdata/basic.json")
	require.NoError(t, err)
	var out []event
	for _, e := range c.Events {
		if e.Dir != dir || e.End {
			continue
		}
		frame, opening := first[e.Conn]
		if !opening {
			frame = e.Frame
		}
		delete(first, e.Conn)
		out = append(out, event{conn: e.Conn, bytes: appendFrame(nil, frame), reply: e.Conn == 1 && !opening})
	}
	return out
}

// mutation is one change of a recording: the operation, the event to change and where in it.
type mutation struct{ op, event, offset, value byte }

// mutate applies mutations to events, one after the other, and returns the result. It may change
// events itself.
func mutate(events []event, mutations []mutation) []event {
	for _, m := range mutations {
		if len(events) > 0 {
			events = m.apply(events)
		}
	}
	return events
}

func (m mutation) apply(events []event) []event {
	i := int(m.event) % len(events)
	l := &events[i]
	at := 0
	if len(l.bytes) > 0 {
		at = int(m.offset) % len(l.bytes)
	}
	switch m.op % 10 {
	case 0: // flip
		if len(l.bytes) > 0 {
			l.bytes[at] ^= m.value | 1
		}
	case 1: // truncate
		l.bytes = l.bytes[:at]
	case 2: // duplicate
		return slices.Insert(events, i, event{conn: l.conn, bytes: bytes.Clone(l.bytes)})
	case 3: // omit
		return slices.Delete(events, i, i+1)
	case 4: // swap
		other := int(m.value) % len(events)
		events[i], events[other] = events[other], events[i]
	case 5: // send on another connection
		l.conn = int(m.value) % 3
	case 6: // add bytes
		l.bytes = slices.Insert(l.bytes, at, bytes.Repeat([]byte{m.value}, 1+int(m.offset)%16)...)
	case 7: // change the length in the header
		if len(l.bytes) >= 8 {
			binary.LittleEndian.PutUint64(l.bytes, uint64(m.offset)<<(m.value%57))
		}
	case 8: // half-close
		l.then = func(r *raw) { _ = r.CloseWrite() }
	case 9: // reset
		l.then = func(r *raw) { r.reset() }
	}
	return events
}

// mutations decodes the bytes of a fuzzer, four for each mutation, and returns at most 20
// mutations. It ignores incomplete ones.
func mutations(program []byte) []mutation {
	var out []mutation
	for p := range slices.Chunk(program, 4) {
		if len(p) == 4 && len(out) < 20 {
			out = append(out, mutation{p[0], p[1], p[2], p[3]})
		}
	}
	return out
}

// replayer sends the events of one end over connections that it opens on demand.
type replayer struct {
	t           testing.TB
	wait        time.Duration // for bytes that the victim sends first
	beforeClose func()        // before the player leaves
	conns       map[int]*raw
	open        func(conn int) (net.Conn, error) // may change later events
}

// newFastReplayer returns a replayer that waits for bytes of the victim for replayTimeout only.
func newFastReplayer(t testing.TB) *replayer {
	return &replayer{t: t, wait: replayTimeout, beforeClose: func() {}, conns: map[int]*raw{}}
}

func (p *replayer) replay(events []event) {
	for i := range events {
		l := &events[i]
		if first := p.conns[0]; l.reply && first != nil {
			first.readSome(p.wait)
		}
		if r := p.conn(l.conn); r != nil {
			r.send(l.bytes)
			if l.then != nil {
				l.then(r)
			}
		}
	}
	p.beforeClose()
	for _, r := range p.conns {
		_ = r.CloseWrite()
	}
	for _, r := range p.conns {
		r.drain(p.wait)
		r.Close()
	}
}

func (p *replayer) conn(i int) *raw {
	if r, ok := p.conns[i]; ok {
		return r
	}
	if c, err := p.open(i); err == nil {
		p.conns[i] = wrapRaw(p.t, c)
	}
	return p.conns[i]
}

// readSome blocks until the victim has sent something, but not longer than wait, and returns up to
// 4 KiB of that in new memory. It returns no bytes after an error or the time limit.
func (r *raw) readSome(wait time.Duration) []byte {
	var buf [4 << 10]byte
	_ = r.SetReadDeadline(time.Now().Add(wait))
	n, _ := r.Read(buf[:])
	return buf[:n]
}

// drain reads and drops the victim's bytes, until the victim closes the connection or sends nothing
// for a duration of wait.
func (r *raw) drain(wait time.Duration) {
	for len(r.readSome(wait)) > 0 {
	}
}

// attackAsClient replays mutated, the events of a client, against the victim's listener. It
// replaces the recorded ids in mutated by those of the victim's answer.
func (v *victim) attackAsClient(p *replayer, mutated []event) {
	p.open = func(conn int) (net.Conn, error) {
		if first := p.conns[0]; conn > 0 && first != nil && len(p.conns) == 1 {
			insertIDs(mutated, first.readSome(p.wait))
		}
		return net.Dial("tcp", strings.TrimPrefix(v.url(), "uv://"))
	}
	p.replay(mutated)
}

// insertIDs replaces, in events, the recorded ids of the further connections by those of the
// victim's answer in frame. If frame is no valid answer it does nothing.
func insertIDs(events []event, frame []byte) {
	answer, err := wire.DecodeBrochureAnswer(frame[min(8, len(frame)):], wire.Limits{})
	if err != nil {
		return
	}
	le := func(id uint64) []byte { return binary.LittleEndian.AppendUint64(nil, id) }
	for i := range events {
		l := &events[i]
		if id, ok := answer.TransportRegistrationIDs[wire.ReplyConnection]; ok {
			l.bytes = bytes.ReplaceAll(l.bytes, le(recordedReplyID), le(id))
		}
		for _, ids := range answer.ChannelRegistrationIDs {
			l.bytes = bytes.ReplaceAll(l.bytes, le(recordedBasicID), le(ids[0]))
		}
	}
}

// attackAsListener makes the victim dial a new listener, and replays the recorded events of a
// listener, as change returns them, to it. If the victim's Dial succeeds, the application a serves
// that pipe.
func (v *victim) attackAsListener(p *replayer, a *application, change func([]event) []event) {
	l := newRogueListener(p.t)
	defer l.Close()
	result := l.dialFrom(v)
	a.pipes.Go(func() {
		if d := <-result; d.err == nil {
			a.serve(d.pipe)
		}
	})
	p.open = func(int) (net.Conn, error) {
		_ = l.SetDeadline(time.Now().Add(p.wait))
		c, err := l.Accept()
		if err == nil {
			wrapRaw(p.t, c).readSome(p.wait) // the victim sends first
		}
		return c, err
	}
	p.replay(change(listenerEvents(p.t, l.Addr().String())))
}

// application serves the pipes of a victim: it sends what the recorded process sent, and reads
// messages until the end of the pipe.
type application struct {
	ctx   context.Context
	pipes sync.WaitGroup
	last  atomic.Pointer[pipe.Pipe] // the last one served
}

func (a *application) serve(p *pipe.Pipe) {
	a.last.Store(p)
	op := p.WriteAsync(a.ctx, &pipe.Message{
		Metadata: []byte("reply"),
		Payloads: []pipe.Payload{{Data: []byte("pong")}},
		Tensors:  []pipe.Tensor{{Buffer: device.Bytes([]byte("abcdefghi"))}},
	})
	for {
		in, err := p.Next(a.ctx)
		if err != nil {
			break
		}
		if in.Descriptor().Bytes() > 1<<20 {
			err = in.Discard(a.ctx)
		} else {
			err = in.Read(a.ctx, pipe.NewAllocation(in.Descriptor()))
		}
		if err != nil {
			break
		}
	}
	_ = p.Close() // may time out, since the peer may not close
	<-op.Done()
}

// run accepts pipes of l and serves each on a goroutine of its own, until the listener or the
// application's context ends.
func (a *application) run(l *pipe.Listener) {
	for {
		p, err := l.Accept(a.ctx)
		if err != nil {
			return
		}
		a.pipes.Go(func() { a.serve(p) })
	}
}

// newServingVictim returns a victim with short timeouts, and an application that serves all pipes
// that the victim accepts until the end of the test.
func newServingVictim(t testing.TB) (*victim, *application) {
	t.Helper()
	v := newVictim(t, shortHandshakeTimeout, shortCloseTimeout)
	ctx, cancel := context.WithCancel(context.Background())
	a := &application{ctx: ctx}
	a.pipes.Go(func() { a.run(v.listener) })
	t.Cleanup(func() {
		cancel()
		a.pipes.Wait()
	})
	return v, a
}
