package agent

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/roster"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// The handshake of a new pipe identifies both workers and proves that each knows the token of
// the group, before any call:
//
//	dialing end               listening end
//	hello      ------------>
//	           <------------  welcome, or a refusal
//	proof      ------------>
//	           <------------  done, or a refusal
//
// Each is the metadata of a message, one value of package codec. The names of the types and of
// their fields are part of the wire format.

// protocol is the version of the agents' protocol.
const protocol = 1

type hello struct {
	Oldest, Newest uint32 // versions of the protocol that are supported
	Group          string
	From           identity
	To             identity // the worker that is dialed
	Nonce          [16]byte
	CallBytes      int `tensorpipe:"Room"` // what the calls of the other end may take here, see Limits
}

// identity identifies one incarnation of a worker.
type identity struct {
	Name        string
	Rank        int
	Incarnation roster.Incarnation
}

type welcome struct {
	Refusal   *refusal
	Version   uint32
	Nonce     [16]byte
	Proof     []byte
	CallBytes int `tensorpipe:"Room"`
}

type proof struct {
	Proof  []byte
	Has    bool    // the dialing end has a pipe to the other by now
	Routes []route // device map for tensors of the dialing end
}

type done struct {
	Refusal *refusal
	Routes  []route
}

// refusal is the reason for which a pipe is rejected.
type refusal struct {
	Code refusalCode
	Text string
}

type refusalCode byte

const (
	rejectedSimultaneous refusalCode = 1 + iota // both ends open a pipe, and the other one is used
	rejectedRestarted                           // one of the workers has another incarnation
	rejectedToken
	rejectedVersion
	rejectedNotMember // not a member
	rejectedClosing
)

// maxHello bounds the handshake's messages, in bytes.
const maxHello = 8 << 10

func (a *Agent) identity() identity {
	return identity{Name: a.self.Name, Rank: a.self.Rank, Incarnation: a.incarnation}
}

func (p *peer) identity() identity {
	return identity{Name: p.info.Name, Rank: p.info.Rank, Incarnation: p.member.Incarnation}
}

// dialHandshake performs the handshake at the end that opened the pipe to p, and returns the
// terms of the other end. The error matches ErrRefused if either end rejects the other,
// errSimultaneousOpen, ErrProtocol, or is that of the pipe or ctx. The caller then aborts the
// pipe.
func (a *Agent) dialHandshake(ctx context.Context, pp *pipe.Pipe, p *peer) (t peerTerms, err error) {
	h := hello{Oldest: protocol, Newest: protocol, Group: a.group, From: a.identity(), To: p.identity(), CallBytes: a.limits.CallBytes}
	if _, err := rand.Read(h.Nonce[:]); err != nil {
		return t, err
	}
	if err := sendValue(ctx, pp, &h); err != nil {
		return t, err
	}
	var w welcome
	if err := receiveValue(ctx, pp, &w); err != nil {
		return t, err
	}
	if err := w.Refusal.err(); err != nil {
		return t, err
	}
	if w.Version != protocol {
		return t, fmt.Errorf("%w: version %d was never offered", ErrProtocol, w.Version)
	}
	if !hmac.Equal(w.Proof, a.tokenProof("welcome", &h, w.Nonce)) {
		return t, fmt.Errorf("%w: %s does not know the token of the group", ErrRefused, p.info.Name)
	}
	answer := proof{Proof: a.tokenProof("hello", &h, w.Nonce), Has: p != a.selfPeer && p.claimDial(), Routes: a.devices.routes(p.info.Name)}
	if err := sendValue(ctx, pp, &answer); err != nil {
		return t, err
	}
	var d done
	if err := receiveValue(ctx, pp, &d); err != nil {
		return t, err
	}
	return peerTerms{w.CallBytes, d.Routes}, d.Refusal.err()
}

// acceptHandshake performs the handshake at the listening end. It returns the worker that opened
// the pipe and its terms. Unless p is this worker, the caller must attach the pipe to p and call
// p.acceptDone. After an error, of which the other end was sent the reason if this end rejects
// it, the caller must end the pipe.
func (a *Agent) acceptHandshake(ctx context.Context, pp *pipe.Pipe) (p *peer, t peerTerms, err error) {
	// Before that neither the members nor this worker's rank are known.
	if err := await(ctx, a.joined); err != nil {
		return nil, t, err
	}
	var h hello
	if err := receiveValue(ctx, pp, &h); err != nil {
		return nil, t, err
	}
	if reason := a.checkHello(&h); reason != nil {
		return nil, t, errors.Join(reason.err(), sendValue(ctx, pp, &welcome{Refusal: reason}))
	}
	var before *conn
	if from := a.peers.find(To(h.From.Name)); from != nil {
		before = from.conn.Load()
	}
	answer, reason, err := a.exchangeProofs(ctx, pp, &h)
	if err != nil {
		return nil, t, err
	}
	if reason == nil {
		if !a.handshakes.finish(pp) { // from here on the peer is not evicted
			return nil, t, errHandshakeEvicted
		}
		pp.Admit()
		p, reason = a.admit(ctx, &h, answer, before)
	}
	if reason != nil {
		return nil, t, errors.Join(reason.err(), sendValue(ctx, pp, &done{Refusal: reason}))
	}
	if err := sendValue(ctx, pp, &done{Routes: a.devices.routes(h.From.Name)}); err != nil {
		if p != a.selfPeer {
			p.acceptDone()
		}
		return nil, t, err
	}
	return p, peerTerms{h.CallBytes, answer.Routes}, nil
}

// checkHello returns nil if the pipe is meant for this worker and both speak the same version,
// otherwise the reason to reject it. Any process may send a hello, so nothing is read from the
// store for it.
func (a *Agent) checkHello(h *hello) *refusal {
	switch {
	case h.Oldest > protocol || h.Newest < protocol:
		return &refusal{rejectedVersion, fmt.Sprintf("%s speaks version %d, not %d to %d", a.self.Name, protocol, h.Oldest, h.Newest)}
	case h.To != a.identity():
		return &refusal{rejectedRestarted, fmt.Sprintf("%s is not here: its address is that of another incarnation or worker", h.To.Name)}
	case h.Group != a.group:
		return &refusal{rejectedNotMember, fmt.Sprintf("%s is in group %q, not %q", a.self.Name, a.group, h.Group)}
	}
	return nil
}

// exchangeProofs sends the welcome, which proves that this end knows the token, and receives and
// checks the proof of the other end. It returns that proof, the reason to reject it if it is
// wrong, or the error of the exchange.
func (a *Agent) exchangeProofs(ctx context.Context, pp *pipe.Pipe, h *hello) (answer proof, reason *refusal, err error) {
	w := welcome{Version: protocol, CallBytes: a.limits.CallBytes}
	if _, err := rand.Read(w.Nonce[:]); err != nil {
		return answer, nil, err
	}
	w.Proof = a.tokenProof("welcome", h, w.Nonce)
	if err := sendValue(ctx, pp, &w); err != nil {
		return answer, nil, err
	}
	if err := receiveValue(ctx, pp, &answer); err != nil {
		return answer, nil, err
	}
	if !hmac.Equal(answer.Proof, a.tokenProof("hello", h, w.Nonce)) {
		reason = &refusal{rejectedToken, fmt.Sprintf("%s does not know the token of the group", h.From.Name)}
	}
	return answer, reason, nil
}

// admit decides about a pipe whose other end knows the token. It returns the peer that opened the
// pipe, or the reason to reject it: the peer is no member, or another pipe to it is used. Unless
// the peer is this worker, the caller must call its acceptDone. before is as for tryAccept.
func (a *Agent) admit(ctx context.Context, h *hello, answer proof, before *conn) (*peer, *refusal) {
	p, err := a.peerByIdentity(ctx, h.From)
	switch {
	case errors.Is(err, ErrRestarted):
		return nil, &refusal{rejectedRestarted, err.Error()}
	case err != nil:
		return nil, &refusal{rejectedNotMember, err.Error()}
	case p == a.selfPeer:
		return p, nil
	}
	return p, p.tryAccept(answer.Has, before)
}

// tokenProof returns the HMAC of the handshake by which an end proves that it knows the token,
// nil without a token. role is "welcome" for the server and "hello" for the client;
// nonce is that of the welcome.
func (a *Agent) tokenProof(role string, h *hello, nonce [16]byte) []byte {
	if len(a.token) == 0 {
		return nil
	}
	m := hmac.New(sha256.New, a.token)
	fmt.Fprintf(m, "%s|%q|%q|%d|%x|%q|%d|%x|%x|%x|%d|%d|%d", role, h.Group,
		h.From.Name, h.From.Rank, h.From.Incarnation, h.To.Name, h.To.Rank, h.To.Incarnation, h.Nonce, nonce, h.Oldest, h.Newest, h.CallBytes)
	return m.Sum(nil)
}

// err returns the error for a rejected pipe: errSimultaneousOpen, or one that matches ErrRefused.
// It is nil if r is nil.
func (r *refusal) err() error {
	if r == nil {
		return nil
	}
	switch r.Code {
	case rejectedSimultaneous:
		return errSimultaneousOpen
	case rejectedRestarted:
		return fmt.Errorf("%w: %w: %s", ErrRefused, ErrRestarted, r.Text)
	case rejectedClosing:
		return fmt.Errorf("%w: %w: %s", ErrRefused, ErrClosed, r.Text)
	}
	return fmt.Errorf("%w: %s", ErrRefused, r.Text)
}

// helloLimits bounds the memory for messages of a peer that has not proved that it knows the
// token.
var helloLimits = codec.Limits{Depth: 8, Bytes: maxHello, Memory: 4 * maxHello, Elements: maxHello}

// sendValue encodes the handshake value v and sends it as the metadata of a message. The error is
// that of the codec, the pipe or ctx.
func sendValue(ctx context.Context, pp *pipe.Pipe, v any) error {
	e := codec.NewEncoder(codec.NewRegistry(), helloLimits)
	if err := e.Encode(v); err != nil {
		return err
	}
	data, _, err := e.Finish()
	if err != nil {
		return err
	}
	return pp.Write(ctx, &pipe.Message{Metadata: data})
}

// receiveValue receives a handshake message and decodes its metadata into v, a pointer. The error
// matches ErrProtocol for an invalid message, or is that of the pipe or ctx.
func receiveValue(ctx context.Context, pp *pipe.Pipe, v any) error {
	in, err := pp.Next(ctx)
	if err != nil {
		return err
	}
	d := in.Descriptor()
	if len(d.Payloads)+len(d.Tensors) > 0 {
		return errors.Join(fmt.Errorf("%w: a handshake message with tensors", ErrProtocol), in.Discard(ctx))
	}
	if err := in.Read(ctx, pipe.Allocation{}); err != nil {
		return err
	}
	dec := codec.NewDecoder(codec.NewRegistry(), helloLimits)
	if err := dec.Reset(d.Metadata); err != nil {
		return withKind(ErrProtocol, err)
	}
	return withKind(ErrProtocol, errors.Join(dec.Decode(v), dec.Finish()))
}
