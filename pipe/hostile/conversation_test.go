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

// blink is how long an attacker that plays a mutated recording waits for what
// may never come.
const blink = 10 * time.Millisecond

// line is a part of a recorded conversation: bytes on one connection, framed.
type line struct {
	conn  int
	bytes []byte
	reply bool       // it answers what the other side has to ask first
	then  func(*raw) // how the connection ends behind it, nil if it goes on
}

// Ids that stand in a recording for those that the victim gives out.
const (
	recordedReplyID = 0xa1a2a3a4a5a6a7a8
	recordedBasicID = 0xb1b2b3b4b5b6b7b8
)

// clientLines is what a C++ client said.
func clientLines(t testing.TB) []line {
	return lines(t, capture.ToServer, map[int][]byte{
		1: request(recordedReplyID),
		2: request(recordedBasicID),
	})
}

// listenerLines is what a C++ listener said, if it had listened at addr.
func listenerLines(t testing.TB, addr string) []line {
	answer := goodAnswer(addr)
	return lines(t, capture.ToClient, map[int][]byte{0: answer.Append(nil)})
}

// lines takes one side of the recording; the first frames of some connections
// are replaced.
func lines(t testing.TB, dir capture.Direction, first map[int][]byte) []line {
	t.Helper()
	c, err := capture.Load("../../internal/wire/testdata/basic.json")
	require.NoError(t, err)
	var out []line
	for _, e := range c.Events {
		if e.Dir != dir || e.End {
			continue
		}
		frame, opening := first[e.Conn]
		if !opening {
			frame = e.Frame
		}
		delete(first, e.Conn)
		out = append(out, line{conn: e.Conn, bytes: appendFrame(nil, frame), reply: e.Conn == 1 && !opening})
	}
	return out
}

// mutation is one way to spoil a conversation: what to do to which line, and
// where in it.
type mutation struct{ op, line, offset, value byte }

// spoil applies mutations in order.
func spoil(lines []line, mutations []mutation) []line {
	for _, m := range mutations {
		if len(lines) > 0 {
			lines = m.apply(lines)
		}
	}
	return lines
}

func (m mutation) apply(lines []line) []line {
	i := int(m.line) % len(lines)
	l := &lines[i]
	at := 0
	if len(l.bytes) > 0 {
		at = int(m.offset) % len(l.bytes)
	}
	switch m.op % 10 {
	case 0: // flip
		if len(l.bytes) > 0 {
			l.bytes[at] ^= m.value | 1
		}
	case 1: // cut off
		l.bytes = l.bytes[:at]
	case 2: // say twice
		return slices.Insert(lines, i, line{conn: l.conn, bytes: bytes.Clone(l.bytes)})
	case 3: // leave out
		return slices.Delete(lines, i, i+1)
	case 4: // say early
		other := int(m.value) % len(lines)
		lines[i], lines[other] = lines[other], lines[i]
	case 5: // say elsewhere
		l.conn = int(m.value) % 3
	case 6: // add bytes
		l.bytes = slices.Insert(l.bytes, at, bytes.Repeat([]byte{m.value}, 1+int(m.offset)%16)...)
	case 7: // announce another length
		if len(l.bytes) >= 8 {
			binary.LittleEndian.PutUint64(l.bytes, uint64(m.offset)<<(m.value%57))
		}
	case 8: // say no more
		l.then = func(r *raw) { _ = r.CloseWrite() }
	case 9: // hang up
		l.then = func(r *raw) { r.reset() }
	}
	return lines
}

// mutations reads them from the bytes of a fuzzer.
func mutations(program []byte) []mutation {
	var out []mutation
	for p := range slices.Chunk(program, 4) {
		if len(p) == 4 && len(out) < 20 {
			out = append(out, mutation{p[0], p[1], p[2], p[3]})
		}
	}
	return out
}

// player says the lines of one side over connections that it opens as it needs
// them.
type player struct {
	t     testing.TB
	wait  time.Duration // for what the victim is to say first
	stay  func()        // before the player leaves
	conns map[int]*raw
	open  func(conn int) (net.Conn, error) // may change lines to come
}

// hasty is a player that waits for nothing long.
func hasty(t testing.TB) *player {
	return &player{t: t, wait: blink, stay: func() {}, conns: map[int]*raw{}}
}

func (p *player) play(lines []line) {
	for i := range lines {
		l := &lines[i]
		if first := p.conns[0]; l.reply && first != nil {
			first.hear(p.wait)
		}
		if r := p.conn(l.conn); r != nil {
			r.send(l.bytes)
			if l.then != nil {
				l.then(r)
			}
		}
	}
	p.stay()
	for _, r := range p.conns {
		_ = r.CloseWrite()
	}
	for _, r := range p.conns {
		r.drain(p.wait)
		r.Close()
	}
}

func (p *player) conn(i int) *raw {
	if r, ok := p.conns[i]; ok {
		return r
	}
	if c, err := p.open(i); err == nil {
		p.conns[i] = bare(p.t, c)
	}
	return p.conns[i]
}

// hear returns what the victim says next, perhaps nothing.
func (r *raw) hear(wait time.Duration) []byte {
	var buf [4 << 10]byte
	_ = r.SetReadDeadline(time.Now().Add(wait))
	n, _ := r.Read(buf[:])
	return buf[:n]
}

// drain reads until the victim hangs up or says nothing any more.
func (r *raw) drain(wait time.Duration) {
	for len(r.hear(wait)) > 0 {
	}
}

// attackAsClient plays a spoilt client against the victim's listener.
func (v *victim) attackAsClient(p *player, spoilt []line) {
	p.open = func(conn int) (net.Conn, error) {
		if first := p.conns[0]; conn > 0 && first != nil && len(p.conns) == 1 {
			insertIDs(spoilt, first.hear(p.wait))
		}
		return net.Dial("tcp", strings.TrimPrefix(v.url(), "uv://"))
	}
	p.play(spoilt)
}

// insertIDs puts the ids of an answer, if it is one, in the places of those
// recorded.
func insertIDs(lines []line, frame []byte) {
	answer, err := wire.DecodeBrochureAnswer(frame[min(8, len(frame)):], wire.Limits{})
	if err != nil {
		return
	}
	le := func(id uint64) []byte { return binary.LittleEndian.AppendUint64(nil, id) }
	for i := range lines {
		l := &lines[i]
		if id, ok := answer.TransportRegistrationIDs[wire.ReplyConnection]; ok {
			l.bytes = bytes.ReplaceAll(l.bytes, le(recordedReplyID), le(id))
		}
		for _, ids := range answer.ChannelRegistrationIDs {
			l.bytes = bytes.ReplaceAll(l.bytes, le(recordedBasicID), le(ids[0]))
		}
	}
}

// attackAsListener lets the victim's application dial a spoilt listener.
func (v *victim) attackAsListener(p *player, a *application, change func([]line) []line) {
	l := newTrap(p.t)
	defer l.Close()
	result := l.lure(v)
	a.pipes.Go(func() {
		if d := <-result; d.err == nil {
			a.serve(d.pipe)
		}
	})
	p.open = func(int) (net.Conn, error) {
		_ = l.SetDeadline(time.Now().Add(p.wait))
		c, err := l.Accept()
		if err == nil {
			bare(p.t, c).hear(p.wait) // the victim speaks first
		}
		return c, err
	}
	p.play(change(listenerLines(p.t, l.Addr().String())))
}

// application is what a program does with its pipes: it says what the recorded
// process said, and reads what comes until that ends.
type application struct {
	ctx   context.Context
	pipes sync.WaitGroup
	last  atomic.Pointer[pipe.Pipe] // served last
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
	_ = p.Close() // the peer may not end its side
	<-op.Done()
}

// run accepts pipes until the listener is closed.
func (a *application) run(l *pipe.Listener) {
	for {
		p, err := l.Accept(a.ctx)
		if err != nil {
			return
		}
		a.pipes.Go(func() { a.serve(p) })
	}
}

// newHost is a victim with an application that serves all its pipes.
func newHost(t testing.TB) (*victim, *application) {
	t.Helper()
	v := newVictim(t, hurried, impatient)
	ctx, cancel := context.WithCancel(context.Background())
	a := &application{ctx: ctx}
	a.pipes.Go(func() { a.run(v.listener) })
	t.Cleanup(func() {
		cancel()
		a.pipes.Wait()
	})
	return v, a
}
