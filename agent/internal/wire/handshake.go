package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"reflect"

	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/roster"
	"github.com/tensorpipe-go/tensorpipe/device"
)

// The handshake of a new pipe identifies both workers and proves that each knows the token of
// the group, before any call:
//
//	dialing end               listening end
//	Hello      ------------>
//	           <------------  Answer, or a refusal
//	Proof      ------------>
//	           <------------  Done, or a refusal
//
// Each is the metadata of a message, one value of package codec.

// Version is the version of the agents' protocol.
const Version = 1

// Hello is the first message of a handshake. The end that dials sends it.
type Hello struct {
	_              struct{} `tensorpipe:"agent.hello"`
	Oldest, Newest uint32   // versions of the protocol that are supported
	Group          string
	From           Identity
	To             Identity // the worker that is dialed
	Nonce          [16]byte
	CallBytes      int `tensorpipe:"Room"` // limit for the calls of the other end
}

// Identity identifies one incarnation of a worker.
type Identity struct {
	_           struct{} `tensorpipe:"agent.identity"`
	Name        string
	Rank        int
	Incarnation roster.Incarnation
}

// Answer is the second message of a handshake. The listening end sends it after it has received the
// Hello.
type Answer struct {
	_         struct{} `tensorpipe:"agent.welcome"`
	Refusal   *Refusal
	Version   uint32
	Nonce     [16]byte
	Proof     []byte
	CallBytes int `tensorpipe:"Room"` // limit for the calls of the other end
}

// Proof is the third message of a handshake. The dialing end sends it after it has received the
// Answer, and proves with it that it knows the token.
type Proof struct {
	_      struct{} `tensorpipe:"agent.proof"`
	Proof  []byte
	Has    bool    // the dialing end has another pipe to the listening end by now
	Routes []Route // device map for tensors of the dialing end
}

// Done is the last message of a handshake. The listening end sends it after it has received the
// Proof. It accepts the pipe if Refusal is nil.
type Done struct {
	_       struct{} `tensorpipe:"agent.done"`
	Refusal *Refusal
	Routes  []Route // device map for tensors of the listening end
}

// Route is one pair of a device map: tensors on From of one worker go to device To of another.
type Route struct {
	_        struct{} `tensorpipe:"agent.route"`
	From, To device.Device
}

// Refusal is the reason for which a pipe is rejected.
type Refusal struct {
	_    struct{} `tensorpipe:"agent.refusal"`
	Code RefusalCode
	Text string
}

// RefusalCode is the kind of a Refusal.
type RefusalCode byte

// The kinds of refusals.
const (
	RejectedSimultaneous RefusalCode = 1 + iota // both ends open a pipe, and the other one is used
	RejectedRestarted                           // one of the workers has another incarnation
	RejectedToken
	RejectedVersion
	RejectedNotMember // not a member
	RejectedClosing
)

// Role names one end of a pipe. It is part of what Prove authenticates, so that neither end can
// send the proof of the other one back.
type Role string

// The roles of both ends.
const (
	Dialing   Role = "hello"
	Listening Role = "welcome"
)

// Prove returns the HMAC-SHA-256, keyed with token, of h, r and nonce, by which the end in the role
// r proves that it knows the token of the group. nonce is that of the Answer. If token is empty,
// Prove returns nil.
func (h *Hello) Prove(token []byte, r Role, nonce [16]byte) []byte {
	if len(token) == 0 {
		return nil
	}
	m := hmac.New(sha256.New, token)
	fmt.Fprintf(m, "%s|%q|%q|%d|%x|%q|%d|%x|%x|%x|%d|%d|%d", r, h.Group,
		h.From.Name, h.From.Rank, h.From.Incarnation, h.To.Name, h.To.Rank, h.To.Incarnation, h.Nonce, nonce, h.Oldest, h.Newest, h.CallBytes)
	return m.Sum(nil)
}

// maxHandshake bounds a message of the handshake, in bytes.
const maxHandshake = 8 << 10

// handshakeLimits bounds the memory for messages of a peer that has not proved that it knows the
// token.
var handshakeLimits = codec.Limits{MaxDepth: 8, Bytes: maxHandshake, MemoryBytes: 4 * maxHandshake, MaxElements: maxHandshake}

// EncodeHandshake returns the encoding of m, a pointer to a message of the handshake, such as a
// Hello. The bytes belong to the caller. The error is that of the codec, or matches codec.ErrLimit
// if DecodeHandshake would reject the message because of its size; the bytes are then nil.
func EncodeHandshake(m any) ([]byte, error) { return encode(m, handshakeLimits) }

// encode returns the encoding of m, a pointer to a message. The error is that of the codec, or
// matches codec.ErrLimit if a decoder with limits would reject the message because of its size; the
// bytes are then nil.
func encode(m any, limits codec.Limits) ([]byte, error) {
	e := codec.NewEncoder(codec.NewRegistry(), limits)
	if err := e.Encode(m); err != nil {
		return nil, err
	}
	data, _, err := e.Finish()
	if err != nil {
		return nil, err
	}
	if err := decode(data, reflect.New(reflect.TypeOf(m).Elem()).Interface(), limits); err != nil {
		return nil, fmt.Errorf("%T: %w", m, err)
	}
	return data, nil
}

// decode decodes message into the variable that m points to. The error is that of the codec.
func decode(message []byte, m any, limits codec.Limits) error {
	d := codec.NewDecoder(codec.NewRegistry(), limits)
	if err := d.Reset(message); err != nil {
		return err
	}
	return errors.Join(d.Decode(m), d.Finish())
}

// DecodeHandshake decodes a message of the handshake into the variable that m points to. The
// variable then shares no memory with message. The error matches ErrProtocol; the variable may then
// be set in part.
func DecodeHandshake(message []byte, m any) error {
	if err := decode(message, m, handshakeLimits); err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return nil
}
