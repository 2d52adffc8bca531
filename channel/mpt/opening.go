package mpt

import (
	"context"
	"runtime"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// A channel of the native dialect has a lane for each processor, but not fewer
// than these, because a lane also waits for its peer, nor more, because then
// memory is what limits it.
const minUsed, maxUsed = 4, 8

// NativeLanes is how many lanes, of so many that a [Factory] has, an end of a channel
// in this process uses at most in the native dialect. The end with fewer decides.
func NativeLanes(have int) int {
	return min(have, max(minUsed, min(maxUsed, runtime.GOMAXPROCS(0))))
}

// used is how many lanes this end of a channel wants in the native dialect.
func (f *Factory) used() int { return NativeLanes(f.lanes()) }

// opening is how far the lanes are. It is guarded by nativeEnd.mu.
type opening struct {
	begun   bool                    // the client has asked, or the server was asked
	granted int                     // by the server, in its wordLanes; at the client: asked for
	heard   bool                    // the client has heard wordLanes, or the server wordOpened
	told    bool                    // the server has told the client of each lane, and is done with framing
	cancel  context.CancelCauseFunc // of the server's waiting
	rest    resting                 // once they are open
}

// want has the lanes opened if that has not been tried. Only the end that dialled
// the pipe can; it gets to know of every large transfer. A pipe within one machine
// moves memory better than any network. The caller holds mu.
func (e *nativeEnd) want() {
	_, near := e.via.(transport.Identified)
	if near || e.role == channel.RoleListen || e.opening.begun {
		return
	}
	e.opening.begun, e.opening.granted = true, e.factory.used()
	e.say(word{kind: wordOpen, count: e.opening.granted})
}

// heardOpen is the server's: it gets the lanes that it can use. The caller holds
// mu, as for all that was heard.
func (e *nativeEnd) heardOpen(count int) error {
	if e.role == channel.RoleConnect || e.opening.begun || count == 0 {
		return protocolError("it asks for %d lanes, out of turn", count)
	}
	e.opening.begun = true
	ctx, cancel := context.WithTimeoutCause(e.opens, awaitLimit, ErrLate)
	ctx, e.opening.cancel = context.WithCancelCause(ctx)
	e.life.Go(func() {
		defer cancel()
		if err := e.grant(ctx, min(count, e.factory.used())); err != nil {
			e.noLanes(err)
		}
	})
	return nil
}

// grant says where to connect n lanes to, and lets each in.
func (e *nativeEnd) grant(ctx context.Context, n int) error {
	x, err := e.factory.expect(ctx, e.via, n)
	if err != nil {
		e.announce(wire.MPTServerHello{})
		return err
	}
	defer x.release()
	e.announce(x.hello)
	for i := range n {
		conn, err := x.lane(ctx, i)
		if err == nil {
			err = e.keep(conn)
		}
		if err == nil {
			err = confirm(ctx, conn, x.tickets[i].id)
		}
		if err != nil {
			return err
		}
	}
	e.granted()
	return nil
}

// granted is the end of what the server does with the lanes one by one.
func (e *nativeEnd) granted() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.opening.told = true
	e.work.Broadcast()
}

func (e *nativeEnd) announce(hello wire.MPTServerHello) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.opening.granted = len(hello.Lanes)
	e.say(word{kind: wordLanes, hello: hello})
}

// keep puts connections under the care of e, or closes them if the end has come.
func (e *nativeEnd) keep(conns ...transport.Conn) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if over := e.over(); over != nil {
		e.life.Go(func() { closeAll(conns) })
		return over
	}
	e.conns = append(e.conns, conns...)
	return nil
}

// drop closes the connections, which are no lanes. The caller holds mu.
func (e *nativeEnd) drop() {
	conns := e.conns
	e.conns = nil
	e.life.Go(func() { closeAll(conns) })
	e.work.Broadcast()
}

// confirm tells the client that its lane has come, by its own words.
func confirm(ctx context.Context, conn transport.Conn, id uint64) error {
	unwatch := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer unwatch()
	if _, ok := conn.(transport.Streamer); !ok {
		return transport.ErrNotSupported
	}
	return sayClientHello(conn, id)
}

// noLanes closes what there is of lanes: all that is large goes by the pipe's own
// means, as it has so far.
func (e *nativeEnd) noLanes(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over() != nil {
		return
	}
	e.log.Warn("tensors are not striped", "channel", Name, "peer", e.peer, "error", err)
	e.drop()
}

// heardLanes is the client's: it dials.
func (e *nativeEnd) heardLanes(text []byte) error {
	if e.role == channel.RoleListen || !e.opening.begun || e.opening.heard {
		return protocolError("it announces lanes, out of turn")
	}
	e.opening.heard = true
	lanes, err := decodeServerHello(text, e.opening.granted)
	if err != nil {
		return err
	}
	e.life.Go(func() { e.dialLanes(lanes) })
	return nil
}

func (e *nativeEnd) dialLanes(lanes []wire.MPTLane) {
	ctx, cancel := context.WithTimeoutCause(e.opens, dialLimit, ErrLate)
	defer cancel()
	conns, err := e.factory.dial(ctx, e.via, lanes, hearConfirmed)
	if len(lanes) == 0 {
		err = errNotListening
	}
	if err == nil {
		err = e.keep(conns...)
	}
	if err != nil {
		e.noLanes(err)
		conns = nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over() == nil {
		e.use()
		e.say(word{kind: wordOpened, count: len(conns)})
	}
}

// hearConfirmed waits for the server's word that it has the lane.
func hearConfirmed(conn transport.Conn, id uint64) error {
	got, err := readClientHello(conn)
	if err == nil && got != id {
		err = protocolError("lane %d is confirmed as %d", id, got)
	}
	return err
}

// heardOpened is the server's: the lanes may be used, or will never be.
func (e *nativeEnd) heardOpened(count int) error {
	o := &e.opening
	if e.role == channel.RoleConnect || !o.begun || o.heard {
		return protocolError("it has opened %d lanes, out of turn", count)
	}
	o.heard = true
	if count == 0 {
		o.cancel(errNotDialled)
		e.drop()
		return nil
	}
	if count != o.granted || len(e.conns) != count {
		return protocolError("it has opened %d lanes, of %d that were announced and %d that have come", count, o.granted, len(e.conns))
	}
	return e.untilTold()
}

// untilTold waits until the server is done with the last lane, of which a client may
// hear, and speak, before the server itself has come back from telling it. Nothing
// else is heard meanwhile: the next word may be an offer on lanes.
func (e *nativeEnd) untilTold() error {
	for !e.opening.told && e.conns != nil && e.over() == nil {
		e.work.Wait()
	}
	switch over := e.over(); {
	case over != nil:
		return over
	case e.conns == nil:
		return protocolError("it has opened lanes that did not come about")
	}
	e.use()
	return nil
}

// use makes lanes of the connections, if there are any. The caller holds mu.
func (e *nativeEnd) use() {
	if len(e.conns) > 0 {
		e.lanes = e.newLanes(e.conns)
		e.watchIdle()
	}
}
