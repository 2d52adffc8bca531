package native

import "encoding/binary"

// HeaderSize is the size of a Header in bytes.
const HeaderSize = 8

// flagCRC is the one flag of frames that this version knows; chunks have others.
const flagCRC = 1

func crcFlag(on bool) byte {
	if on {
		return flagCRC
	}
	return 0
}

// Header precedes the body of a frame.
type Header struct {
	Length uint32 // of the body
	Kind   byte   // KindMessage, or a ControlKind
	CRC    bool   // a checksum follows the body

	sum uint32 // checksum of the encoded header, if CRC is set
}

// Append appends the encoding of h, HeaderSize bytes, to dst and returns the extended slice.
func (h Header) Append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, h.Length)
	return append(dst, h.Kind, crcFlag(h.CRC), 0, 0)
}

// Remaining returns the number of bytes of the frame after the header: those of the body and of the
// checksum, if there is one.
func (h Header) Remaining() int {
	if h.CRC {
		return int(h.Length) + SumSize
	}
	return int(h.Length)
}

// Body returns the body of the frame with the decoded header h. rest must be the h.Remaining()
// bytes after the header; the body aliases rest. If the frame has a checksum, Body verifies it. If
// it is wrong, the error is an [*Error] that matches ErrChecksum, and the body must not be used.
func (h Header) Body(rest []byte) ([]byte, error) {
	body := rest[:h.Length]
	if !h.CRC {
		return body, nil
	}
	received := binary.LittleEndian.Uint32(rest[h.Length:])
	return body, compareSums("frame", received, Sum(h.sum, body))
}

// DecodeMessageHeader decodes p, the first HeaderSize bytes of a frame of the message stream. If
// the header is invalid, or its kind is not KindMessage, the error is an [*Error]. If the body is
// larger than limits allow, the [*Error] matches ErrLimit.
func DecodeMessageHeader(p []byte, limits Limits) (Header, error) {
	h, err := decodeHeader(messageFrame, p)
	if err != nil {
		return Header{}, err
	}
	if h.Kind != KindMessage {
		return Header{}, fault(messageFrame, "kind", "%#02x, want %#02x", h.Kind, KindMessage)
	}
	if maximum := limits.WithDefaults().message(); uint64(h.Length) > maximum {
		return Header{}, exceeded(messageFrame, "length", uint64(h.Length), maximum)
	}
	return h, nil
}

// DecodeControlHeader decodes p, the first HeaderSize bytes of a frame of the control stream. If
// the header is invalid, or the body cannot have that size for its kind, the error is an [*Error]
// and the result must not be used. A kind that this version does not know is no error if its body
// is not too large.
func DecodeControlHeader(p []byte, limits Limits) (Header, error) {
	h, err := decodeHeader(controlFrame, p)
	if err != nil {
		return Header{}, err
	}
	return h, ControlKind(h.Kind).checkSize(uint64(h.Length), limits.WithDefaults())
}

// decodeHeader decodes the first HeaderSize bytes of p, the header of a frame of either stream. It
// does not check length and kind. If a flag or a reserved byte is invalid, the error is an [*Error]
// whose Frame is the name frame.
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
