package mpt

import (
	"cmp"
	"context"
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
	arrived  func(bytes int) // Link.Arrived
	checksum bool
	log      *slog.Logger
	life     *transfer.Life
	broken   func(error) // Link.Broken, once

	// The lanes are opened until opens ends.
	opens       context.Context
	stopOpening context.CancelCauseFunc

	mu      sync.Mutex
	ended   bool  // nothing moves any more
	parted  error // nothing begins any more because the peer is gone, see part
	sends   side
	recvs   side
	small   map[uint64]struct{} // Sends on host that are no jobs
	offers  map[uint64]way      // of the peer, without a Recv that can use them
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
		arrived:  link.Arrived,
		checksum: link.Checksum,
		log:      link.Logger,
		small:    make(map[uint64]struct{}),
		offers:   make(map[uint64]way),
	}
	e.sends = newSide(role, channel.Channel.Send)
	e.recvs = newSide(1-role, channel.Channel.Recv)
	e.work.L = &e.mu
	var once sync.Once
	e.broken = func(err error) { once.Do(func() { link.Broken(err) }) }
	e.life = transfer.NewLife(e.release, e.broken)
	e.opens, e.stopOpening = context.WithCancelCause(e.life.Context())
	for _, work := range []func() error{e.speak, e.listen} {
		e.life.Go(func() { e.lost(work()) })
	}
	return e
}

// isSmall reports whether a transfer is not worth being cut. Both ends decide it
// alike, by the length alone.
func (e *nativeEnd) isSmall(buf device.Buffer) bool { return buf.Len() < 2*e.factory.stripe }

func (e *nativeEnd) Send(id uint64, src device.Buffer, done func(error)) {
	if e.isSmall(src) {
		e.sendSmall(id, src, done)
		return
	}
	e.begin(&e.sends, id, src, done, e.offer)
}

func (e *nativeEnd) Recv(id uint64, dst device.Buffer, done func(error)) {
	if e.isSmall(dst) {
		e.recvSmall(id, dst, done)
		return
	}
	e.begin(&e.recvs, id, dst, done, e.match)
}

// sendSmall leaves a transfer to the pipe's own means, but for its end.
func (e *nativeEnd) sendSmall(id uint64, src device.Buffer, done func(error)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if over := e.over(); over != nil {
		e.life.Later(done, over)
		return
	}
	e.small[id] = struct{}{}
	e.host.Send(id, src, func(err error) {
		e.mu.Lock()
		delete(e.small, id)
		e.mu.Unlock()
		done(err)
	})
}

func (e *nativeEnd) recvSmall(id uint64, dst device.Buffer, done func(error)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if over := e.over(); over != nil {
		e.life.Later(done, over)
		return
	}
	e.host.Recv(id, dst, done)
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
	over := e.over()
	switch {
	case over != nil:
		return over
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
	closeAll(e.conns) // of which lanes that are at work let go when they notice
	_ = e.host.Close(cause)
	for _, l := range e.lanes {
		l.close(cause)
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
	e.work.Broadcast()
	return idle
}

func (e *nativeEnd) explain(err error) error { return explain(e.peer, err) }
