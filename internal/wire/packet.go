package wire

import "github.com/tensorpipe-go/tensorpipe/internal/nop"

// Packet is the first message on every connection. It says what the
// connection is for, and is either a [SpontaneousConnection] or a
// [RequestedConnection].
type Packet interface {
	// Append appends the encoded message to dst.
	Append(dst []byte) []byte

	packet()
}

// The alternatives of a Packet.
const (
	spontaneousConnection = 0
	requestedConnection   = 1
)

// SpontaneousConnection opens a pipe: a [Brochure] follows on the same
// connection.
type SpontaneousConnection struct {
	ContextName string // what the client calls itself; only for messages to people
}

// RequestedConnection brings a connection that the server asked for.
type RequestedConnection struct {
	RegistrationID uint64 // from the BrochureAnswer or an MPTServerHello
}

func (SpontaneousConnection) packet() {}
func (RequestedConnection) packet()   {}

// Append appends the encoded message to dst.
func (m SpontaneousConnection) Append(dst []byte) []byte {
	dst = nop.AppendStructHeader(nop.AppendVariantHeader(dst, spontaneousConnection), 1)
	return nop.AppendString(dst, m.ContextName)
}

// Append appends the encoded message to dst.
func (m RequestedConnection) Append(dst []byte) []byte {
	dst = nop.AppendStructHeader(nop.AppendVariantHeader(dst, requestedConnection), 1)
	return nop.AppendUint(dst, m.RegistrationID)
}

// DecodePacket decodes a Packet from the whole of p.
func DecodePacket(p []byte, limits Limits) (Packet, error) {
	r := newReader("Packet", p, limits)
	return result(&r, r.packet())
}

func (r *reader) packet() Packet {
	switch index := r.Variant(); index {
	case spontaneousConnection:
		r.at("SpontaneousConnection")
		r.Struct(1)
		return SpontaneousConnection{ContextName: r.text()}
	case requestedConnection:
		r.at("RequestedConnection")
		r.Struct(1)
		return RequestedConnection{RegistrationID: r.Uint64()}
	default:
		r.Failf("unknown alternative %d", index)
		return nil
	}
}
