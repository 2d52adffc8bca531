package native

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/compress"
)

// Decode decodes a MESSAGE from the whole of body. Metadata and Data of m point
// into it. After an error m has what it had before.
func (m *Message) Decode(body []byte, limits Limits) error {
	return m.decode(&scanner{body: body, length: uint64(len(body)), limits: limits.WithDefaults()})
}

func (m *Message) decode(s *scanner) error {
	s.scan()
	if s.err != nil {
		return s.err
	}
	m.fill(s)
	return nil
}

// fill cuts a body, which has been found to be in order, into its pieces.
func (m *Message) fill(s *scanner) {
	forms, kinds, metadata, data := s.sections()
	here := uint64(len(data)) == s.inline
	m.Deadline = time.Duration(binary.LittleEndian.Uint64(s.body))
	m.Metadata = cut(&metadata, uint64(binary.LittleEndian.Uint32(s.body[8:])))
	m.Payloads = slices.Grow(m.Payloads[:0], s.payloads)[:s.payloads]
	for i := range m.Payloads {
		m.Payloads[i].decode(s.payload(i), &forms, &metadata)
	}
	m.Tensors = slices.Grow(m.Tensors[:0], s.tensors)[:s.tensors]
	for i := range m.Tensors {
		entry := s.tensor(i)
		t := &m.Tensors[i]
		t.decode(entry, &forms, &metadata)
		t.Source.Kind = m.kinds.intern(cut(&kinds, uint64(entry[13])))
		t.Target.Kind = m.kinds.intern(cut(&kinds, uint64(entry[14])))
	}
	if here {
		m.SetData(data)
	}
}

// SetData cuts the inline bytes of a body into the Data of the parts.
func (m *Message) SetData(inline []byte) {
	for i := range m.Payloads {
		if p := &m.Payloads[i]; p.Inline {
			p.Data = cut(&inline, p.Carried())
		}
	}
	for i := range m.Tensors {
		if t := &m.Tensors[i]; t.Inline {
			t.Data = cut(&inline, t.Carried())
		}
	}
}

func (p *Payload) decode(entry []byte, forms, metadata *[]byte) {
	*p = Payload{
		Length:   binary.LittleEndian.Uint64(entry),
		Inline:   entry[12]&flagInline != 0,
		Codec:    compress.Codec(entry[13]),
		Metadata: cut(metadata, uint64(binary.LittleEndian.Uint32(entry[8:]))),
	}
	if p.Codec != compress.None {
		p.Form = binary.LittleEndian.Uint64(cut(forms, formEntry))
	}
}

// decode takes all but the kinds of the devices.
func (t *Tensor) decode(entry []byte, forms, metadata *[]byte) {
	*t = Tensor{
		Length:   binary.LittleEndian.Uint64(entry),
		Inline:   entry[12]&flagInline != 0,
		Codec:    compress.Codec(entry[15]),
		Metadata: cut(metadata, uint64(binary.LittleEndian.Uint32(entry[8:]))),
		Source:   device.Device{Index: int(binary.LittleEndian.Uint32(entry[16:]))},
		Target:   device.Device{Index: int(binary.LittleEndian.Uint32(entry[20:]))},
	}
	if t.Codec != compress.None {
		t.Form = binary.LittleEndian.Uint64(cut(forms, formEntry))
	}
}

// cut takes n bytes off the front of p. Nothing is nil, and pins nothing.
func cut(p *[]byte, n uint64) []byte {
	if n == 0 {
		return nil
	}
	head := (*p)[:n:n]
	*p = (*p)[n:]
	return head
}

// kindCache remembers the device kinds that came last, so that their names are
// not allocated again for each message.
type kindCache struct {
	kinds [8]string
	next  int // the one to give way
}

func (c *kindCache) intern(p []byte) string {
	if len(p) == 0 {
		return ""
	}
	if string(p) == device.KindCPU {
		return device.KindCPU
	}
	for _, k := range c.kinds {
		if k == string(p) {
			return k
		}
	}
	k := string(p)
	c.kinds[c.next] = k
	c.next = (c.next + 1) % len(c.kinds)
	return k
}
