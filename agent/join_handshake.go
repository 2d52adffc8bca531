package agent

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/internal/errtext"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

func (a *Agent) identity() wire.Identity {
	return wire.Identity{Name: a.self.Name, Rank: a.self.Rank, Incarnation: a.incarnation}
}

func (p *peer) identity() wire.Identity {
	return wire.Identity{Name: p.info.Name, Rank: p.info.Rank, Incarnation: p.member.Incarnation}
}

// dialHandshake performs the handshake on the pipe pp, at the end that opened pp to p. It returns
// the terms that the other end sent. If the other end rejects the pipe because it is opening one
// itself, the error is errSimultaneousOpen. If either end rejects the other for another reason, the
// error matches ErrRefused. Other errors match ErrProtocol, or are those of the pipe or ctx. After
// an error the caller must abort the pipe and call p.releaseDial.
func (a *Agent) dialHandshake(ctx context.Context, pp *pipe.Pipe, p *peer) (t peerTerms, err error) {
	h := wire.Hello{Oldest: wire.Version, Newest: wire.Version, Group: a.group, From: a.identity(), To: p.identity(), CallBytes: a.limits.CallBytes}
	if _, err := rand.Read(h.Nonce[:]); err != nil {
		return t, err
	}
	if err := sendValue(ctx, pp, &h); err != nil {
		return t, err
	}
	var w wire.Answer
	if err := receiveValue(ctx, pp, &w); err != nil {
		return t, err
	}
	if err := refusalError(w.Refusal); err != nil {
		return t, err
	}
	if w.Version != wire.Version {
		return t, fmt.Errorf("%w: version %d was never offered", ErrProtocol, w.Version)
	}
	if !hmac.Equal(w.Proof, h.Prove(a.token, wire.Listening, w.Nonce)) {
		return t, fmt.Errorf("%w: the worker does not know the token of the group", ErrRefused)
	}
	proof := wire.Proof{Proof: h.Prove(a.token, wire.Dialing, w.Nonce), Has: p != a.selfPeer && p.claimDial(), Routes: wire.Routes(a.devices.node.Maps[p.info.Name])}
	if err := sendValue(ctx, pp, &proof); err != nil {
		return t, err
	}
	var d wire.Done
	if err := receiveValue(ctx, pp, &d); err != nil {
		return t, err
	}
	return peerTerms{w.CallBytes, d.Routes}, refusalError(d.Refusal)
}

// acceptHandshake waits until this worker has joined its group, and then performs the handshake at
// the listening end of the pipe pp. It returns the peer that opened the pipe, and the terms that
// the peer sent. Unless p is this worker, the caller must attach the pipe to p and call
// p.acceptDone. If this end rejects the other, acceptHandshake sends the reason and returns it as
// the error. If the other end only asks for the status, acceptHandshake sends that, and the error
// is errInspected. After any error p is nil and the caller must end the pipe.
func (a *Agent) acceptHandshake(ctx context.Context, pp *pipe.Pipe) (p *peer, t peerTerms, err error) {
	// Before that neither the members nor this worker's rank are known.
	if err := await(ctx, a.joined); err != nil {
		return nil, t, err
	}
	var h wire.Hello
	if err := receiveValue(ctx, pp, &h); err != nil {
		return nil, t, err
	}
	if reason := a.checkHello(&h); reason != nil {
		return nil, t, errtext.Join(refusalError(reason), sendValue(ctx, pp, &wire.Answer{Refusal: reason}))
	}
	var before *conn
	if from := a.peers.find(To(h.From.Name)); from != nil {
		before = from.conn.Load()
	}
	w := wire.Answer{Version: wire.Version, CallBytes: a.limits.CallBytes}
	if _, err := rand.Read(w.Nonce[:]); err != nil {
		return nil, t, err
	}
	w.Proof = h.Prove(a.token, wire.Listening, w.Nonce)
	if err := sendValue(ctx, pp, &w); err != nil {
		return nil, t, err
	}
	var proof wire.Proof
	if err := receiveValue(ctx, pp, &proof); err != nil {
		return nil, t, err
	}
	var reason *wire.Refusal
	if !hmac.Equal(proof.Proof, h.Prove(a.token, wire.Dialing, w.Nonce)) {
		reason = &wire.Refusal{Code: wire.RejectedToken, Text: fmt.Sprintf("%s does not know the token of the group", cmp.Or(h.From.Name, "the client"))}
	} else if isInspector(&h) {
		return nil, t, a.sendStatus(ctx, pp)
	} else {
		if !a.handshakes.finish(pp) { // from here on the peer is not evicted
			return nil, t, errHandshakeEvicted
		}
		pp.Admit()
		p, reason = a.admit(ctx, &h, proof, before)
	}
	if reason != nil {
		return nil, t, errtext.Join(refusalError(reason), sendValue(ctx, pp, &wire.Done{Refusal: reason}))
	}
	if err := sendValue(ctx, pp, &wire.Done{Routes: wire.Routes(a.devices.node.Maps[h.From.Name])}); err != nil {
		if p != a.selfPeer {
			p.acceptDone()
		}
		return nil, t, err
	}
	return p, peerTerms{h.CallBytes, proof.Routes}, nil
}

// checkHello returns nil if h, the first message of a handshake, is meant for this worker and its
// group and the sender of h speaks the protocol version of this worker. Otherwise it returns the
// reason to reject the pipe. It reads nothing from the store, since any process may send such a
// message.
func (a *Agent) checkHello(h *wire.Hello) *wire.Refusal {
	switch {
	case h.Oldest > wire.Version || h.Newest < wire.Version:
		return &wire.Refusal{Code: wire.RejectedVersion, Text: fmt.Sprintf("%s speaks version %d, not %d to %d", a.self.Name, wire.Version, h.Oldest, h.Newest)}
	case h.To != a.identity():
		return &wire.Refusal{Code: wire.RejectedRestarted, Text: fmt.Sprintf("%s is not here: its address is that of another incarnation or worker", h.To.Name)}
	case h.Group != a.group:
		return &wire.Refusal{Code: wire.RejectedNotMember, Text: fmt.Sprintf("%s is in group %q, not %q", a.self.Name, a.group, h.Group)}
	}
	return nil
}

// admit decides about a pipe whose other end has proved that it knows the token. It returns the
// peer that opened the pipe and nil if the pipe is accepted. If the peer is no known member, or
// another pipe to it is used, admit returns the reason to reject the pipe, and the returned peer
// must not be used. After an accepted pipe of another worker the caller must call acceptDone of the
// peer. before is the pipe to the peer that was in use when the handshake began, or nil.
func (a *Agent) admit(ctx context.Context, h *wire.Hello, proof wire.Proof, before *conn) (*peer, *wire.Refusal) {
	p, err := a.peerByIdentity(ctx, h.From)
	switch {
	case errors.Is(err, ErrRestarted):
		return nil, &wire.Refusal{Code: wire.RejectedRestarted, Text: err.Error()}
	case err != nil:
		return nil, &wire.Refusal{Code: wire.RejectedNotMember, Text: err.Error()}
	case p == a.selfPeer:
		return p, nil
	}
	return p, p.tryAccept(proof.Has, before)
}

// refusalError returns the error for a rejected pipe: errSimultaneousOpen, or one that matches
// ErrRefused. It is nil if r is nil.
func refusalError(r *wire.Refusal) error {
	if r == nil {
		return nil
	}
	switch r.Code {
	case wire.RejectedSimultaneous:
		return errSimultaneousOpen
	case wire.RejectedRestarted:
		return errtext.New(ErrRefused.Error()+": "+prefixed(ErrRestarted, r.Text), ErrRefused, ErrRestarted)
	case wire.RejectedClosing:
		return errtext.New(ErrRefused.Error()+": "+prefixed(ErrClosed, r.Text), ErrRefused, ErrClosed)
	}
	return errtext.New(prefixed(ErrRefused, r.Text), ErrRefused)
}

// sendValue encodes the handshake value v and sends it as the metadata of a message. The error is
// that of the codec, the pipe or ctx.
func sendValue(ctx context.Context, pp *pipe.Pipe, v any) error {
	data, err := wire.EncodeHandshake(v)
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
		return errtext.Join(fmt.Errorf("%w: a handshake message with tensors", ErrProtocol), in.Discard(ctx))
	}
	if err := in.Read(ctx, pipe.Allocation{}); err != nil {
		return err
	}
	return wire.DecodeHandshake(d.Metadata, v)
}
