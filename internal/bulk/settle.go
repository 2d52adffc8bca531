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

// ending is a job of which done is to be called.
type ending struct {
	job *job
	err error
}

// later is finish when the caller, which holds mu, has moved on. One goroutine
// does it for all: a message that is given up may have thousands of transfers.
func (m *Mover) later(j *job, err error) {
	m.endings = append(m.endings, ending{j, err})
	if !m.ending {
		m.ending = true
		m.life.Go(m.finishAll)
	}
}

func (m *Mover) finishAll() {
	for {
		batch := m.takeEndings()
		if len(batch) == 0 {
			return
		}
		for _, e := range batch {
			m.finish(e.job, e.err)
		}
	}
}

// takeEndings returns nothing at the end of finishAll.
func (m *Mover) takeEndings() []ending {
	m.mu.Lock()
	defer m.mu.Unlock()
	batch := m.endings
	m.endings = nil
	m.ending = len(batch) > 0
	return batch
}

// explain puts a name to an error.
func (m *Mover) explain(err error) error {
	return &channel.Error{Channel: "bulk", Peer: m.cfg.Peer, Err: err}
}
