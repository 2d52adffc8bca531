package wait

// Sibling returns another Memory for the same source, with a user of its own: what
// comes for one of them has come for the other.
func (m *Memory) Sibling() *Memory {
	s := m.spinner
	s.shy = shyness{}
	s.apart = new(apart)
	return &Memory{s}
}

// patient is how many times longer a patient Memory spins.
const patient = 4

// Patient has m spin for longer, and returns it. That is for who waits for something
// that is under way but not due: the peer may have to be woken for it, which takes
// longer than what a spin usually waits for.
func (m *Memory) Patient() *Memory {
	m.spinner.bound *= patient
	return m
}
