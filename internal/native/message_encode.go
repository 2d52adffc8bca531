package native

import (
	"encoding/binary"

	"github.com/tensorpipe-go/tensorpipe/internal/compress"
)

// EncodedSize returns the size in bytes of the frame of m: header, descriptor and inline bytes, without
// the checksum.
func (m *Message) EncodedSize() int {
	descriptor, inline := m.sizes()
	return HeaderSize + int(descriptor+inline)
}

// sizes returns two sizes in bytes of m's body: of the descriptor, which is the part before the
// inline bytes, and of all inline bytes together.
func (m *Message) sizes() (descriptor, inline uint64) {
	descriptor = messageFixed + uint64(len(m.Metadata))
	for i := range m.Payloads {
		p := &m.Payloads[i]
		descriptor += payloadEntry + compressedEntrySize(p.Codec) + uint64(len(p.Metadata))
		if p.Inline {
			inline += p.WireLength()
		}
	}
	for i := range m.Tensors {
		t := &m.Tensors[i]
		descriptor += tensorEntry + compressedEntrySize(t.Codec) + uint64(len(t.Metadata)+len(t.Source.Kind)+len(t.Target.Kind))
		if t.Inline {
			inline += t.WireLength()
		}
	}
	return descriptor, inline
}

// compressedEntrySize returns the size of the field in the descriptor that holds a part's
// compressed length: 8 bytes, or 0 if codec is None, because the field is then missing.
func compressedEntrySize(codec compress.Codec) uint64 {
	if codec != compress.None {
		return compressedEntry
	}
	return 0
}

// Append appends the whole frame of m to dst and returns the extended slice. If crc is true, the
// frame has a checksum. [Message.Check] must accept m, and each inline part must have WireLength
// bytes in Data. The frame has copies of all bytes of m.
func (m *Message) Append(dst []byte, crc bool) []byte {
	start := len(dst)
	dst = m.AppendDescriptor(dst, crc)
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

// AppendDescriptor appends the header and the descriptor of m to dst and returns the extended
// slice. It ignores Data. The caller must then append WireLength bytes for each inline payload,
// after these WireLength bytes for each inline tensor, and, if crc is true, the checksum with
// [AppendChecksum]. [Message.Check] must accept m.
func (m *Message) AppendDescriptor(dst []byte, crc bool) []byte {
	descriptor, inline := m.sizes()
	dst = Header{Length: uint32(descriptor + inline), Kind: KindMessage, CRC: crc}.Append(dst)
	timeout := uint64(0) // no deadline
	if m.Timeout != 0 {
		timeout = uint64(max(m.Timeout, 1)) // an expired one is sent as 1
	}
	dst = binary.LittleEndian.AppendUint64(dst, timeout)
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
	for i := range m.Payloads {
		if m.Payloads[i].Codec != compress.None {
			dst = binary.LittleEndian.AppendUint64(dst, m.Payloads[i].CompressedLength)
		}
	}
	for i := range m.Tensors {
		if m.Tensors[i].Codec != compress.None {
			dst = binary.LittleEndian.AppendUint64(dst, m.Tensors[i].CompressedLength)
		}
	}
	for i := range m.Tensors {
		dst = append(append(dst, m.Tensors[i].Source.Kind...), m.Tensors[i].Target.Kind...)
	}
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
	flags := inlineFlag(p.Inline, p.Length)
	if p.Eager {
		flags |= flagEagerPayload
	}
	return append(dst, flags, byte(p.Codec), 0, 0)
}

func (t *Tensor) appendEntry(dst []byte) []byte {
	flags := inlineFlag(t.Inline, t.Length)
	if !t.Target.IsZero() {
		flags |= flagNamed
	}
	if t.Joined {
		flags |= flagJoined
	}
	if t.Eager {
		flags |= flagEager
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
