package bulk

// order waits until the stream on which j's memory is valid has come to it. Each
// such wait has a goroutine of its own: transfers come in any order, and work
// on one stream may depend on the outcome of any other transfer.
func (m *Mover) order(s *side, j *job) {
	err := j.WaitReady()
	if err != nil {
		err = m.explain(err)
	}
	proceed := m.ordered(s, j, err)
	switch {
	case !proceed:
	case err != nil:
		m.finish(j, err)
	case s == &m.in:
		m.cfg.Ready(j.lane.number, j.ID)
	}
}

// ordered notes that j's memory can be used, or that it never can. It reports
// false if j was given up, or the end of everything has ended the wait and will
// finish j too.
func (m *Mover) ordered(s *side, j *job, fault error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case !s.has(j) || m.life.Err() != nil:
		return false
	case fault != nil:
		return s.remove(j)
	}
	j.ordered = true
	if s == &m.in {
		m.open()
	} else if j.ready {
		m.queue(j)
	}
	return true
}
