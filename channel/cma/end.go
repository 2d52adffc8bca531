package cma

import (
	"errors"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// hangUpWait is how long an end that closes keeps what it has announced in place
// for a peer that may be reading it. The protocol has no word for taking it
// back; a peer that hears of the end hangs up, and that is what is waited for.
const hangUpWait = time.Second

var _ channel.Fitter = (*end)(nil)

// end is this process's end of a channel in the compatible dialect. One goroutine
// announces, one copies, in the order of the announcements, and one takes in
// completions.
type end struct {
	announcements transport.Conn // both ways
	completions   transport.Conn // both ways
	peer          string
	life          *transfer.Life
	crew          *crew

	sends    *transfer.Queue // not announced yet
	recvs    *transfer.Queue
	written  chan struct{} // closed when nothing more will be announced
	answered chan struct{} // closed when no more completions will come

	mu      sync.Mutex
	pending fifo.Queue[pending] // announced, not completed

	announcer announcer
	copier    copier
}

func newEnd(link channel.Link, process int, slots chan struct{}) *end {
	e := &end{
		announcements: link.Conns[0],
		completions:   link.Conns[1],
		peer:          link.Peer,
		sends:         transfer.NewQueue(),
		recvs:         transfer.NewQueue(),
		written:       make(chan struct{}),
		answered:      make(chan struct{}),
	}
	e.life = transfer.NewLife(func() error { return e.release(link) }, link.Broken)
	e.crew = newCrew(slots, e.life.Go)
	e.crew.arrived = link.Arrived
	e.copier.init(process)
	e.life.Go(e.serveSends)
	e.life.Go(e.serveRecvs)
	e.life.Go(e.serveCompletions)
	return e
}

func (e *end) serveSends() {
	e.fail(e.announce())
	e.life.Drain(e.sends)
	close(e.written)
}

func (e *end) serveRecvs() {
	e.fail(e.receive())
	e.life.Drain(e.recvs)
	e.crew.close()
}

func (e *end) serveCompletions() {
	err := e.complete()
	close(e.answered)
	e.fail(err)
	<-e.written
	e.failPending()
}

func (e *end) Send(id uint64, src device.Buffer, done func(error)) { e.begin(e.sends, id, src, done) }

func (e *end) Recv(id uint64, dst device.Buffer, done func(error)) { e.begin(e.recvs, id, dst, done) }

// begin queues a transfer. One that cannot take place leaves a gap that the wire
// form has no word for.
func (e *end) begin(q *transfer.Queue, id uint64, buf device.Buffer, done func(error)) {
	t, err := transfer.New(e.life.Context(), id, buf, done)
	if !buf.IsHost() {
		err = device.ErrMemory
	}
	if err != nil {
		err = e.explain(err)
		e.life.Fail(err)
		e.life.Later(done, err)
		return
	}
	if buf.Len() == 0 || !q.Push(t) {
		e.life.Later(done, e.life.Err())
	}
}

// Fits implements [channel.Fitter]: an announcement names one piece of memory.
func (e *end) Fits(src device.Buffer) error {
	if _, ok := src.Contiguous(); ok {
		return nil
	}
	return checkGather(src)
}

func (e *end) Abort(id uint64, cause error) {
	if e.sends.Has(id) || e.recvs.Has(id) || e.isPending(id) {
		e.life.Fail(cause)
	}
}

func (e *end) Close(cause error) error { return e.life.Close(cause) }

func (e *end) fail(err error) { e.life.Fail(e.explain(err)) }

func (e *end) explain(err error) error { return explain(e.peer, err) }

// release hangs up. A peer that may be reading what was announced is told first,
// and has time to hang up as well; one that broke the protocol has not.
func (e *end) release(link channel.Link) error {
	if !e.anyPending() || errors.Is(e.life.Err(), channel.ErrProtocol) {
		return channel.CloseLink(link)
	}
	_ = e.announcements.CloseWrite()
	_ = e.completions.CloseWrite()
	e.life.Go(func() {
		patience := time.NewTimer(hangUpWait)
		defer patience.Stop()
		select {
		case <-e.answered:
		case <-patience.C:
		}
		_ = channel.CloseLink(link)
	})
	return nil
}
