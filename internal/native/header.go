package native

import "encoding/binary"

// HeaderSize is the size of a Header in bytes.
const HeaderSize = 8

// flagCRC is the one flag of frames and chunks that this version knows.
const flagCRC = 1

func crcFlag(on bool) byte {
	if on {
		return flagCRC
	}
	return 0
}

// Header stands before the body of a frame.
type Header struct {
	Length uint32 // of the body
	Kind   byte   // KindMessage, or a ControlKind
	CRC    bool   // a checksum follows the body

	sum uint32 // of the header as it came, where there is a checksum
}

// Append appends the HeaderSize bytes of h to dst.
func (h Header) Append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, h.Length)
	return append(dst, h.Kind, crcFlag(h.CRC), 0, 0)
}

// Rest is the number of bytes of the frame behind its header.
func (h Header) Rest() int {
	if h.CRC {
		return int(h.Length) + SumSize
	}
	return int(h.Length)
}

// Body takes the body out of rest, the Rest bytes that followed a header that
// was decoded, and compares the checksum if there is one. The error matches
// ErrChecksum.
func (h Header) Body(rest []byte) ([]byte, error) {
	body := rest[:h.Length]
	if !h.CRC {
		return body, nil
	}
	came := binary.LittleEndian.Uint32(rest[h.Length:])
	return body, compareSums("frame", came, Sum(h.sum, body))
}

// DecodeMessageHeader decodes the first HeaderSize bytes of a frame of the
// message stream, and refuses a body larger than limits.
func DecodeMessageHeader(p []byte, limits Limits) (Header, error) {
	h, err := decodeHeader(messageFrame, p)
	if err != nil {
		return Header{}, err
	}
	if h.Kind != KindMessage {
		return Header{}, fault(messageFrame, "kind", "%#02x, want %#02x", h.Kind, KindMessage)
	}
	if most := limits.WithDefaults().message(); uint64(h.Length) > most {
		return Header{}, exceeded(messageFrame, "length", uint64(h.Length), most)
	}
	return h, nil
}

// DecodeControlHeader decodes the first HeaderSize bytes of a frame of the
// control stream, and refuses a body whose size its kind does not have.
func DecodeControlHeader(p []byte, limits Limits) (Header, error) {
	h, err := decodeHeader(controlFrame, p)
	if err != nil {
		return Header{}, err
	}
	return h, ControlKind(h.Kind).checkSize(uint64(h.Length), limits.WithDefaults())
}

// decodeHeader decodes what all frames have in common.
func decodeHeader(frame string, p []byte) (Header, error) {
	h := Header{Length: binary.LittleEndian.Uint32(p), Kind: p[4], CRC: p[5]&flagCRC != 0}
	if p[5]&^flagCRC != 0 {
		return Header{}, fault(frame, "flags", "unknown bits in %#02x", p[5])
	}
	if reserved := binary.LittleEndian.Uint16(p[6:]); reserved != 0 {
		return Header{}, fault(frame, "reserved", "%#04x, want 0", reserved)
	}
	if h.CRC {
		h.sum = Sum(0, p[:HeaderSize])
	}
	return h, nil
}
