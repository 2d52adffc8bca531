package wait

// Sibling returns another Memory for the same source, with a user of its own: what
// comes for one of them has come for the other.
func (m *Memory) Sibling() *Memory {
	s := m.spinner
	s.shy = shyness{}
	s.apart = new(apart)
	return &Memory{s}
}
