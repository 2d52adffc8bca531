package codec

import (
	"slices"
	"unsafe"
)

// header is a named section of a message.
type header struct {
	name string
	data []byte
}

// SetHeader gives the message a section of that name, or changes it. The data are
// not copied and must not change before Finish. Headers may be set at any time,
// by hooks too, and are known at the other end before any value is decoded.
func (e *Encoder) SetHeader(name string, data []byte) {
	for i := range e.headers {
		if e.headers[i].name == name {
			e.headers[i].data = data
			return
		}
	}
	e.headers = append(e.headers, header{name, data})
}

func (e *Encoder) appendHeaders() error {
	if len(e.headers) > maxHeaders {
		return fault(ErrLimit, "%d headers, at most %d", len(e.headers), maxHeaders)
	}
	e.Uint(uint64(len(e.headers)))
	for _, h := range e.headers {
		e.String(h.name)
		e.Bytes(h.data)
	}
	return nil
}

// Header is the section of that name, which lies within the message given to
// Reset and must not be changed. Sections that nobody asks for do no harm.
func (d *Decoder) Header(name string) (data []byte, ok bool) {
	i := slices.IndexFunc(d.headers, func(h header) bool { return h.name == name })
	if i < 0 {
		return nil, false
	}
	return d.headers[i].data, true
}

// maxHeaders bounds the sections, so that looking for one stays quick.
const maxHeaders = 64

func (d *Decoder) readHeaders(c *cursor) error {
	n, err := c.count(2)
	if err != nil {
		return err
	}
	if n > maxHeaders {
		return fault(ErrLimit, "%d headers, at most %d", n, maxHeaders)
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
			return corrupt("two headers %q", name)
		}
		if err := d.spend(len(name) + int(unsafe.Sizeof(header{}))); err != nil {
			return err
		}
		d.headers = append(d.headers, header{string(name), data})
	}
	return nil
}
