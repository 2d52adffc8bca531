package native

import (
	"encoding/binary"

	"github.com/tensorpipe-go/tensorpipe/internal/compress"
)

// EncodedSize is the size of the frame in bytes, inline bytes included but not
// the checksum.
func (m *Message) EncodedSize() int {
	descriptor, inline := m.sizes()
	return HeaderSize + int(descriptor+inline)
}

// sizes returns the bytes of the body up to the inline bytes, and those.
func (m *Message) sizes() (descriptor, inline uint64) {
	descriptor = messageFixed + uint64(len(m.Metadata))
	for i := range m.Payloads {
		p := &m.Payloads[i]
		descriptor += payloadEntry + formSize(p.Codec) + uint64(len(p.Metadata))
		if p.Inline {
			inline += p.Carried()
		}
	}
	for i := range m.Tensors {
		t := &m.Tensors[i]
		descriptor += tensorEntry + formSize(t.Codec) + uint64(len(t.Metadata)+len(t.Source.Kind)+len(t.Target.Kind))
		if t.Inline {
			inline += t.Carried()
		}
	}
	return descriptor, inline
}

// formSize is what the length of a form takes, where there is one.
func formSize(codec compress.Codec) uint64 {
	if codec != compress.None {
		return formEntry
	}
	return 0
}

// Append appends the whole frame, with a checksum if crc is set. The Data of
// inline parts must have what they carry.
func (m *Message) Append(dst []byte, crc bool) []byte {
	start := len(dst)
	dst = m.AppendHead(dst, crc)
	for i := range m.Payloads {
		if m.Payloads[i].Inline {
			dst = append(dst, m.Payloads[i].Data...)
		}
	}
	for i := range m.Tensors {
		if m.Tensors[i].Inline {
			dst = append(dst, m.Tensors[i].Data...)
		}
	}
	if crc {
		dst = AppendChecksum(dst, start)
	}
	return dst
}

// AppendHead appends the frame up to its inline bytes. The caller appends
// those: of the payloads, then of the tensors, in order and as many as they
// carry; Data is not looked at. If crc is set he closes the frame with
// [AppendChecksum]. A message that [Message.Check] would refuse must not get
// here.
func (m *Message) AppendHead(dst []byte, crc bool) []byte {
	descriptor, inline := m.sizes()
	dst = Header{Length: uint32(descriptor + inline), Kind: KindMessage, CRC: crc}.Append(dst)
	dst = binary.LittleEndian.AppendUint64(dst, m.nanoseconds())
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(m.Metadata)))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(m.Payloads)))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(m.Tensors)))
	dst = binary.LittleEndian.AppendUint32(dst, 0)
	for i := range m.Payloads {
		dst = m.Payloads[i].appendEntry(dst)
	}
	for i := range m.Tensors {
		dst = m.Tensors[i].appendEntry(dst)
	}
	dst = m.appendForms(dst)
	for i := range m.Tensors {
		dst = append(append(dst, m.Tensors[i].Source.Kind...), m.Tensors[i].Target.Kind...)
	}
	return m.appendMetadata(dst)
}

// nanoseconds is the Deadline on the wire. One that has passed is not none.
func (m *Message) nanoseconds() uint64 {
	if m.Deadline == 0 {
		return 0
	}
	return uint64(max(m.Deadline, 1))
}

// appendForms appends the lengths of the compressed forms.
func (m *Message) appendForms(dst []byte) []byte {
	for i := range m.Payloads {
		if m.Payloads[i].Codec != compress.None {
			dst = binary.LittleEndian.AppendUint64(dst, m.Payloads[i].Form)
		}
	}
	for i := range m.Tensors {
		if m.Tensors[i].Codec != compress.None {
			dst = binary.LittleEndian.AppendUint64(dst, m.Tensors[i].Form)
		}
	}
	return dst
}

func (m *Message) appendMetadata(dst []byte) []byte {
	dst = append(dst, m.Metadata...)
	for i := range m.Payloads {
		dst = append(dst, m.Payloads[i].Metadata...)
	}
	for i := range m.Tensors {
		dst = append(dst, m.Tensors[i].Metadata...)
	}
	return dst
}

func (p *Payload) appendEntry(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, p.Length)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(p.Metadata)))
	return append(dst, inlineFlag(p.Inline, p.Length), byte(p.Codec), 0, 0)
}

func (t *Tensor) appendEntry(dst []byte) []byte {
	flags := inlineFlag(t.Inline, t.Length)
	if !t.Target.IsZero() {
		flags |= flagNamed
	}
	dst = binary.LittleEndian.AppendUint64(dst, t.Length)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(t.Metadata)))
	dst = append(dst, flags, byte(len(t.Source.Kind)), byte(len(t.Target.Kind)), byte(t.Codec))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(t.Source.Index))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(t.Target.Index))
	return binary.LittleEndian.AppendUint64(dst, 0)
}

func inlineFlag(inline bool, length uint64) byte {
	if inline || length == 0 {
		return flagInline
	}
	return 0
}
