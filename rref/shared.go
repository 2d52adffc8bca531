package rref

// SharedValues returns the number of values of this worker to which other workers refer.
func (r *Refs) SharedValues() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for v := range r.values {
		if v.forks > 0 {
			n++
		}
	}
	return n
}
