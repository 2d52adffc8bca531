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

// SetHeader adds a header with that name and data to the message, or replaces the data if the
// message has a header of that name. data is not copied and must not change before Finish. Headers
// may be set at any time before Finish, also by custom encodings. The receiver can read them before
// it decodes values. If there are more than 64, Finish returns an error that matches ErrLimit.
func (e *Encoder) SetHeader(name string, data []byte) {
	for i := range e.headers {
		if e.headers[i].name == name {
			e.headers[i].data = data
			return
		}
	}
	e.headers = append(e.headers, header{name, data})
}

// Header returns the data of the header of that name and true, or nil and false if the message has
// no such header. The data are a part of the message given to Reset, not a copy: they are valid
// until the memory of the message changes and must not be modified. Header may be called after
// Reset.
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
		d.addHeader(name, data)
	}
	return nil
}

// maxKeptName bounds the names that a Decoder keeps for the next message, in bytes.
const maxKeptName = 64

// addHeader adds a header. Messages in a row often have the same ones: it uses the memory of the name in the last
// message that had as many.
func (d *Decoder) addHeader(name, data []byte) {
	n := len(d.headers)
	if n < cap(d.headers) && d.headers[:n+1][n].name == string(name) {
		d.headers = d.headers[:n+1]
		d.headers[n].data = data
		return
	}
	d.headers = append(d.headers, header{string(name), data})
}

// state holds the values that hooks and callers set for one message by SetState.
type state struct{ entries []stateEntry }

type stateEntry struct{ key, value any }

func (s *state) reset() { s.entries = cleared(s.entries) }

// State returns the value that SetState has set for key since the message began, or nil if there is
// none. As with a context, keys should have a type that their package defines.
func (s *state) State(key any) any {
	for _, entry := range s.entries {
		if entry.key == key {
			return entry.value
		}
	}
	return nil
}

// SetState sets the value that State returns for key, which must be comparable. The value is kept
// until Reset of the Encoder or Decoder, or Forget of the Decoder. It is not sent.
func (s *state) SetState(key, value any) {
	for i := range s.entries {
		if s.entries[i].key == key {
			s.entries[i].value = value
			return
		}
	}
	s.entries = append(s.entries, stateEntry{key, value})
}
