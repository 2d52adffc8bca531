package mpt

import (
	"cmp"
	"log/slog"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// nativeEnd is this process's end of a channel in the native dialect. A large
// transfer is a job, which moves in slices; each slice is a transfer of the
// [bulk.Mover] of its lane. What is smaller goes to host at once.
type nativeEnd struct {
	factory  *Factory
	role     channel.Role
	control  transport.Conn
	via      transport.Conn
	host     channel.Channel
	peer     string
	checksum bool
	log      *slog.Logger
	life     *transfer.Life

	mu      sync.Mutex
	ended   bool // nothing begins any more
	sends   side
	recvs   side
	offers  map[uint64]way // of the peer, without a Recv that can use them
	due     fifo.Queue[*job]
	words   fifo.Queue[word]
	work    sync.Cond // words has grown, or opening has, or the end has come
	opening opening
	conns   []transport.Conn // of lanes, also of those that are not open yet
	lanes   []*lane          // nil until they are open
	idle    *time.Timer      // of the client, once it has had lanes
	moved   bool             // something has, on lanes, since idle went off
}

func newNativeEnd(f *Factory, link channel.Link, role channel.Role) *nativeEnd {
	e := &nativeEnd{
		factory:  f,
		role:     role,
		control:  link.Conns[0],
		via:      first(link),
		host:     link.Host,
		peer:     link.Peer,
		checksum: link.Checksum,
		log:      link.Logger,
		offers:   make(map[uint64]way),
	}
	e.sends = newSide(role, channel.Channel.Send)
	e.recvs = newSide(1-role, channel.Channel.Recv)
	e.work.L = &e.mu
	e.life = transfer.NewLife(e.release, link.Broken)
	for _, work := range []func() error{e.speak, e.listen} {
		e.life.Go(func() { e.life.Fail(e.explain(work())) })
	}
	return e
}

// small reports whether a transfer is not worth being cut. Both ends decide it
// alike, by the length alone.
func (e *nativeEnd) small(buf device.Buffer) bool { return buf.Len() < 2*e.factory.stripe }

func (e *nativeEnd) Send(id uint64, src device.Buffer, done func(error)) {
	if e.small(src) {
		e.host.Send(id, src, done)
		return
	}
	e.begin(&e.sends, id, src, done, e.offer)
}

func (e *nativeEnd) Recv(id uint64, dst device.Buffer, done func(error)) {
	if e.small(dst) {
		e.host.Recv(id, dst, done)
		return
	}
	e.begin(&e.recvs, id, dst, done, e.match)
}

func (e *nativeEnd) Abort(id uint64, cause error) {
	cause = cmp.Or(cause, channel.ErrClosed)
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.offers, id)
	e.host.Abort(id, cause) // a small one
	for _, s := range []*side{&e.sends, &e.recvs} {
		if j := s.jobs[id]; j != nil {
			e.giveUp(s, j, cause)
		}
	}
}

func (e *nativeEnd) Close(cause error) error { return e.life.Close(cause) }

// refuse says why a job cannot begin. The caller holds mu.
func (e *nativeEnd) refuse(s *side, j *job, fault error) error {
	switch {
	case e.ended:
		return e.life.Err()
	case !j.Buf.IsHost():
		return e.explain(device.ErrMemory)
	case fault != nil:
		return e.explain(fault)
	case s.jobs[j.ID] != nil:
		return e.explain(errBusy)
	}
	return nil
}

// release lets go of everything at the end. Slices under way are ended by their
// movers, and with the last of them their job.
func (e *nativeEnd) release() error {
	cause := e.life.Err()
	for _, j := range e.end(cause) {
		j.Done(cause)
	}
	_ = e.host.Close(cause)
	for _, l := range e.lanes {
		_ = l.mover.Close(cause)
	}
	return e.control.Close()
}

// end lets nothing begin any more, and takes out the jobs that nothing moves.
func (e *nativeEnd) end(cause error) (idle []*job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = true
	for _, s := range []*side{&e.sends, &e.recvs} {
		for _, j := range s.jobs {
			j.GiveUp()
			j.cause = cause
			if len(j.slices) == 0 {
				idle = append(idle, j)
			}
		}
		s.jobs = nil
	}
	e.due.Clear()
	if e.idle != nil {
		e.idle.Stop()
	}
	closeAll(e.conns) // of which lanes that are at work let go when they notice
	e.work.Broadcast()
	return idle
}

func (e *nativeEnd) explain(err error) error { return explain(e.peer, err) }
