package bulk

import (
	"cmp"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
)

// lane is a channel. Its fields are guarded by Mover.mu.
type lane struct {
	m       *Mover
	number  uint16
	running int   // calls of done to come, or under way
	closed  error // the cause
}

func (l *lane) Send(id uint64, src device.Buffer, done func(error)) {
	l.begin(&l.m.out, id, src, done)
}

func (l *lane) Recv(id uint64, dst device.Buffer, done func(error)) {
	if l.begin(&l.m.in, id, dst, done) {
		l.m.cfg.Ready(l.number, id)
	}
}

// begin makes a job, and reports whether its memory can be used already. If not
// it will be proceeded with when it can.
func (l *lane) begin(s *side, id uint64, buf device.Buffer, done func(error)) (ordered bool) {
	t, fault := transfer.New(l.m.life.Context(), id, buf, done)
	j := &job{Transfer: t, lane: l}
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	l.running++
	if err := l.refuse(s, j, fault); err != nil || buf.Len() == 0 {
		j.GiveUp()
		l.m.later(j, err)
		return false
	}
	s.add(j)
	j.ordered = j.Ready()
	if !j.ordered {
		l.m.life.Go(func() { l.m.order(s, j) })
	} else if s == &l.m.in {
		l.m.open()
	}
	return j.ordered
}

// refuse says why j cannot take place.
func (l *lane) refuse(s *side, j *job, fault error) error {
	switch {
	case l.closed != nil:
		return l.closed
	case l.m.ended:
		return l.m.life.Err()
	case !j.Buf.IsHost():
		return l.m.explain(device.ErrMemory)
	case fault != nil:
		return l.m.explain(fault)
	case s.jobs[j.label()] != nil:
		return l.m.explain(ErrBusy)
	}
	return nil
}

func (l *lane) Abort(id uint64, cause error) {
	cause = cmp.Or(cause, channel.ErrClosed)
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	for _, s := range []*side{&l.m.out, &l.m.in} {
		if j := s.jobs[label{l.number, id}]; j != nil && l.m.giveUp(s, j, cause) {
			l.m.later(j, cause)
		}
	}
}

func (l *lane) Close(cause error) error {
	for _, j := range l.end(cmp.Or(cause, channel.ErrClosed)) {
		l.m.finish(j, cmp.Or(cause, channel.ErrClosed))
	}
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	for l.running > 0 {
		l.m.settled.Wait()
	}
	return nil
}

// end lets nothing begin any more and returns the jobs that are to be finished.
func (l *lane) end(cause error) []*job {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	l.closed = cmp.Or(l.closed, cause)
	return l.m.giveUpAll(l, cause)
}
