package cma

import (
	"cmp"
	"os"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// maxNoted is the number of pieces of memory, in offers of the peer for which no
// memory waits yet, that an end notes. A pipe's own limits are reached before.
const maxNoted = 1 << 17

// nativeEnd is this process's end of a channel in the native dialect. One
// goroutine writes, one reads, and copies what is small, and the crew copies the
// rest; while such a copy is stuck another one reads. None waits for a transfer, so that
// they may come in any order.
type nativeEnd struct {
	conn transport.Conn
	peer string
	pid  int
	from int // the process of the peer, 0 if it is not known yet; of who reads
	life *transfer.Life
	crew *crew

	mu      sync.Mutex
	ended   bool // nothing begins any more
	sends   map[uint64]*sending
	recvs   map[uint64]*receiving
	offers  map[uint64]*offer // of the peer, without a Recv that can use them
	noted   int               // pieces in offers
	reading reading
	words   fifo.Queue[word] // to be written
	work    sync.Cond        // words have come, or the end
}

func newNativeEnd(link channel.Link, process int, slots chan struct{}) *nativeEnd {
	e := &nativeEnd{
		conn:   link.Conns[0],
		peer:   link.Peer,
		pid:    os.Getpid(),
		from:   process,
		sends:  make(map[uint64]*sending),
		recvs:  make(map[uint64]*receiving),
		offers: make(map[uint64]*offer),
	}
	e.work.L = &e.mu
	e.life = transfer.NewLife(func() error { return e.release(link) }, link.Broken)
	e.crew = newCrew(slots, e.life.Go)
	e.crew.arrived = link.Arrived
	e.reading.alarm.init(e.look)
	e.life.Go(func() { e.life.Fail(e.explain(e.write())) })
	e.life.Go(e.serveFrames)
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
	e.forget(id)
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
// crew notices, and finishes that.
func (e *nativeEnd) release(link channel.Link) error {
	err := channel.CloseLink(link)
	sends, recvs := e.end()
	for _, s := range sends {
		s.Done(e.life.Err())
	}
	for _, r := range recvs {
		r.Done(e.life.Err())
	}
	e.crew.close()
	return err
}

// end lets nothing begin any more, and takes out what is to be finished.
func (e *nativeEnd) end() (sends []*sending, recvs []*receiving) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.sends {
		s.GiveUp()
		s.word.Store(0)
		sends = append(sends, s)
	}
	for _, r := range e.recvs {
		r.GiveUp()
		if e.stopCopy(r, e.life.Err()) {
			recvs = append(recvs, r)
		}
	}
	e.ended = true
	e.sends, e.recvs, e.offers = nil, nil, nil
	e.work.Broadcast()
	return sends, recvs
}

func (e *nativeEnd) explain(err error) error { return explain(e.peer, err) }
