package wire

import "github.com/tensorpipe-go/tensorpipe/internal/nop"

// MPTHello is what the channel mpt says while it opens its lanes: the server
// sends an [MPTServerHello] on the channel's only connection, and the client
// starts each lane, a new connection, with an [MPTClientHello].
type MPTHello interface {
	// Append appends the encoded message to dst.
	Append(dst []byte) []byte

	mptHello()
}

// The alternatives of an MPTHello.
const (
	mptServerHello = 0
	mptClientHello = 1
)

// MPTServerHello says where the client has to connect each lane, in order.
type MPTServerHello struct {
	Lanes []MPTLane
}

// MPTLane is one lane of mpt.
type MPTLane struct {
	Address        string // where the server listens for it
	RegistrationID uint64 // to be named in the lane's MPTClientHello
}

// MPTClientHello is the first message on a lane.
type MPTClientHello struct {
	RegistrationID uint64 // from the MPTServerHello
}

const minLane = 5 // b9 02, bd 00, 00

func (MPTServerHello) mptHello() {}
func (MPTClientHello) mptHello() {}

// Append appends the encoded message to dst.
func (m MPTServerHello) Append(dst []byte) []byte {
	dst = nop.AppendStructHeader(nop.AppendVariantHeader(dst, mptServerHello), 1)
	dst = nop.AppendArrayHeader(dst, len(m.Lanes))
	for _, lane := range m.Lanes {
		dst = nop.AppendString(nop.AppendStructHeader(dst, 2), lane.Address)
		dst = nop.AppendUint(dst, lane.RegistrationID)
	}
	return dst
}

// Append appends the encoded message to dst.
func (m MPTClientHello) Append(dst []byte) []byte {
	dst = nop.AppendStructHeader(nop.AppendVariantHeader(dst, mptClientHello), 1)
	return nop.AppendUint(dst, m.RegistrationID)
}

// DecodeMPTHello decodes an MPTHello from the whole of p.
func DecodeMPTHello(p []byte, limits Limits) (MPTHello, error) {
	r := newReader("MPTHello", p, limits)
	return result(&r, r.mptHello())
}

func (r *reader) mptHello() MPTHello {
	switch index := r.Variant(); index {
	case mptServerHello:
		r.at("ServerHello")
		r.Struct(1)
		return MPTServerHello{Lanes: r.mptLanes()}
	case mptClientHello:
		r.at("ClientHello")
		r.Struct(1)
		return MPTClientHello{RegistrationID: r.Uint64()}
	default:
		r.Failf("unknown alternative %d", index)
		return nil
	}
}

func (r *reader) mptLanes() []MPTLane {
	lanes := resize[MPTLane](nil, r.list(minLane, r.limits.Entries))
	for i := range lanes {
		r.Struct(2)
		lanes[i] = MPTLane{Address: r.text(), RegistrationID: r.Uint64()}
	}
	return lanes
}
