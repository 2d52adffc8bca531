package codec

// state is what hooks and the layers around the codec keep for one message.
type state struct{ entries []stateEntry }

type stateEntry struct{ key, value any }

func (s *state) reset() { s.entries = emptied(s.entries) }

// State is the value that was set for key, or nil.
func (s *state) get(key any) any {
	for _, entry := range s.entries {
		if entry.key == key {
			return entry.value
		}
	}
	return nil
}

func (s *state) set(key, value any) {
	for i := range s.entries {
		if s.entries[i].key == key {
			s.entries[i].value = value
			return
		}
	}
	s.entries = append(s.entries, stateEntry{key, value})
}

// State is what SetState set for key in this message, or nil. As for a context,
// the key should have a type of its own.
func (e *Encoder) State(key any) any { return e.state.get(key) }

// SetState keeps a value for key, which must be comparable, until Reset.
func (e *Encoder) SetState(key, value any) { e.state.set(key, value) }

// State is what SetState set for key in this message, or nil. As for a context,
// the key should have a type of its own.
func (d *Decoder) State(key any) any { return d.state.get(key) }

// SetState keeps a value for key, which must be comparable, until Reset.
func (d *Decoder) SetState(key, value any) { d.state.set(key, value) }
