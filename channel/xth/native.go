package xth

import (
	"cmp"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// nativeEnd is this process's end of a channel in the native dialect. One
// goroutine announces, one takes in announcements, one copies, and one takes in
// completions; none waits for a transfer, so that they may come in any order.
type nativeEnd struct {
	announcements transport.Conn // both ways
	completions   transport.Conn // both ways
	peer          string
	life          *transfer.Life
	here, there   *route // offers of this end and of the peer

	mu     sync.Mutex
	ended  bool // nothing begins any more
	sends  map[uint64]*sending
	recvs  map[uint64]*receiving
	offers map[uint64]*offer // announced by the peer, without a Recv that can use them
	words  fifo.Queue[word]  // to be announced
	pairs  fifo.Queue[*receiving]
	work   sync.Cond // words or pairs have grown, or the end has come
}

func newNativeEnd(link channel.Link) *nativeEnd {
	from, to := link.Conns[0].LocalAddr(), link.Conns[0].RemoteAddr()
	e := &nativeEnd{
		announcements: link.Conns[0],
		completions:   link.Conns[1],
		peer:          link.Peer,
		here:          routes.joinSender(ends{from: from, to: to}),
		there:         routes.joinReceiver(ends{from: to, to: from}),
		sends:         make(map[uint64]*sending),
		recvs:         make(map[uint64]*receiving),
		offers:        make(map[uint64]*offer),
	}
	e.work.L = &e.mu
	e.life = transfer.NewLife(func() error { return e.release(link) }, link.Broken)
	for _, work := range []func() error{e.announce, e.takeAnnouncements, e.copyPairs, e.takeCompletions} {
		e.life.Go(func() { e.life.Fail(e.explain(work())) })
	}
	return e
}

func (e *nativeEnd) Abort(id uint64, cause error) {
	cause = cmp.Or(cause, channel.ErrClosed)
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.sends[id]; s != nil {
		e.abortSend(s, cause)
	}
	if r := e.recvs[id]; r != nil {
		e.abortRecv(r, cause)
	}
	delete(e.offers, id)
}

func (e *nativeEnd) Close(cause error) error { return e.life.Close(cause) }

// refuse says why a transfer cannot take place. The caller holds mu.
func (e *nativeEnd) refuse(buf device.Buffer, fault error) error {
	switch {
	case e.ended:
		return e.life.Err()
	case buf.Len() > 0 && !buf.IsHost():
		return e.explain(device.ErrMemory)
	case fault != nil:
		return e.explain(fault)
	}
	return nil
}

// release lets go of everything at the end, but for what is being copied: the
// copier notices, and finishes that.
func (e *nativeEnd) release(link channel.Link) error {
	err := channel.CloseLink(link)
	sends, recvs := e.end()
	for _, s := range sends {
		s.withdraw()
		s.Done(e.life.Err())
	}
	for _, r := range recvs {
		r.Done(e.life.Err())
	}
	routes.leaveSender(e.here)
	return err
}

// end lets nothing begin any more, and takes out what is to be finished.
func (e *nativeEnd) end() (sends []*sending, recvs []*receiving) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.sends {
		s.GiveUp()
		sends = append(sends, s)
	}
	for _, r := range e.recvs {
		r.GiveUp()
		if !r.copying {
			recvs = append(recvs, r)
		}
	}
	e.ended = true
	e.sends, e.recvs, e.offers = nil, nil, nil
	e.work.Broadcast()
	return sends, recvs
}

func (e *nativeEnd) explain(err error) error { return explain(e.peer, err) }
