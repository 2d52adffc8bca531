package bulk

import "github.com/tensorpipe-go/tensorpipe/channel"

// giveUp takes out j because of cause, and reports whether it is the caller's
// to finish. The caller holds mu.
func (m *Mover) giveUp(s *side, j *job, cause error) (free bool) {
	if s == &m.out && j.ordered && j.ready {
		m.turns.Remove(func(other *job) bool { return other == j })
	}
	return s.giveUp(j, cause)
}

// giveUpAll is giveUp for the jobs of a lane, nil standing for all lanes. The
// caller holds mu, and finishes those that are returned when it does not.
func (m *Mover) giveUpAll(l *lane, cause error) (free []*job) {
	for _, s := range []*side{&m.out, &m.in} {
		for _, j := range s.jobs {
			if (l == nil || l == j.lane) && m.giveUp(s, j, cause) {
				free = append(free, j)
			}
		}
	}
	return free
}

// letGo is letGo of s for a holder that does not hold mu.
func (m *Mover) letGo(s *side) (cause error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return s.letGo()
}

// moved notes that the next n bytes of j have, and reports whether those were
// the last, so that j is the caller's to finish. It does nothing if j was given
// up. The caller holds mu.
func (m *Mover) moved(s *side, j *job, n int) (all bool) {
	if !s.has(j) {
		return false
	}
	j.moved += n
	all = j.moved == j.Buf.Len()
	if all {
		delete(s.jobs, j.label())
	}
	return all
}

// finish calls done. The caller does not hold mu.
func (m *Mover) finish(j *job, err error) {
	j.Done(err)
	m.mu.Lock()
	defer m.mu.Unlock()
	j.lane.running--
	m.settled.Broadcast()
}

// later is finish when the caller has moved on.
func (m *Mover) later(j *job, err error) {
	m.life.Go(func() { m.finish(j, err) })
}

// explain puts a name to an error.
func (m *Mover) explain(err error) error {
	return &channel.Error{Channel: "bulk", Peer: m.cfg.Peer, Err: err}
}
