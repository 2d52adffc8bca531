package codec

import (
	"slices"
	"unsafe"
)

// header is a named section of a message, which can be read before the values are decoded.
type header struct {
	name string
	data []byte
}

// SetHeader sets the data of the header of that name, and adds the header if the message does not have
// it. data is not copied and must not change before Finish. Headers may be set at any time before
// Finish, also by hooks; the receiver can read them before it decodes values.
func (e *Encoder) SetHeader(name string, data []byte) {
	for i := range e.headers {
		if e.headers[i].name == name {
			e.headers[i].data = data
			return
		}
	}
	e.headers = append(e.headers, header{name, data})
}

// Header returns the data of the header of that name; ok is false if the message does not have it. The
// data are part of the message given to Reset: they are valid as long as that does not change, and must
// not be modified.
func (d *Decoder) Header(name string) (data []byte, ok bool) {
	i := slices.IndexFunc(d.headers, func(h header) bool { return h.name == name })
	if i < 0 {
		return nil, false
	}
	return d.headers[i].data, true
}

// maxHeaders bounds the headers of a message, because Header searches them one by one.
const maxHeaders = 64

func (d *Decoder) readHeaders(c *cursor) error {
	n, err := c.count(2)
	if err != nil {
		return err
	}
	if n > maxHeaders {
		return errorf(ErrLimit, "%d headers, at most %d", n, maxHeaders)
	}
	for range n {
		name, err := c.text()
		if err != nil {
			return err
		}
		data, err := c.text()
		if err != nil {
			return err
		}
		if _, twice := d.Header(string(name)); twice {
			return corruptf("two headers %q", name)
		}
		if err := d.charge(len(name) + int(unsafe.Sizeof(header{}))); err != nil {
			return err
		}
		d.headers = append(d.headers, header{string(name), data})
	}
	return nil
}

// state holds the values that hooks and callers set for one message by SetState.
type state struct{ entries []stateEntry }

type stateEntry struct{ key, value any }

func (s *state) reset() { s.entries = cleared(s.entries) }

// State returns the value that SetState set for key in this message, or nil. As with a context, keys
// should have a type that their package defines.
func (s *state) State(key any) any {
	for _, entry := range s.entries {
		if entry.key == key {
			return entry.value
		}
	}
	return nil
}

// SetState sets the value for key, which must be comparable, until Reset, or until Forget. It is not
// sent.
func (s *state) SetState(key, value any) {
	for i := range s.entries {
		if s.entries[i].key == key {
			s.entries[i].value = value
			return
		}
	}
	s.entries = append(s.entries, stateEntry{key, value})
}
