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

// The ends of a new pipe tell each other who they are, and show that they know the
// token of the group, before any call travels:
//
//	who opened it             the other end
//	hello      ------------>
//	           <------------  welcome, or why not
//	proof      ------------>
//	           <------------  done, or why not
//
// Each is the metadata of a message, one value of package codec.

// protocol is the version of what agents say to each other.
const protocol = 1

type hello struct {
	Oldest, Newest uint32 // versions
	Group          string
	From           identity
	To             identity // who it is meant for
	Nonce          [16]byte
	Room           int // for calls of the other end, Limits.CallBytes
}

// identity is a worker as it calls itself.
type identity struct {
	Name        string
	Rank        int
	Incarnation roster.Incarnation
}

type welcome struct {
	Refusal *refusal
	Version uint32
	Nonce   [16]byte
	Proof   []byte
	Room    int
}

type proof struct {
	Proof  []byte
	Has    bool    // there is a pipe to this worker by now
	Routes []route // of this end's tensors
}

type done struct {
	Refusal *refusal
	Routes  []route
}

// refusal says why a pipe is not wanted.
type refusal struct {
	Code refusalCode
	Text string
}

type refusalCode byte

const (
	refusedCrossed   refusalCode = 1 + iota // both ends open one, and the other's is taken
	refusedRestarted                        // the one who is meant, or who asks, is another by now
	refusedToken
	refusedVersion
	refusedStranger // not a member
	refusedClosing
)

// maxHello bounds these messages.
const maxHello = 8 << 10

func (a *Agent) identity() identity {
	return identity{Name: a.self.Name, Rank: a.self.Rank, Incarnation: a.incarnation}
}

func (p *peer) identity() identity {
	return identity{Name: p.info.Name, Rank: p.info.Rank, Incarnation: p.member.Incarnation}
}

// introduce is the part of the end that opened the pipe. It returns what the other end
// has said.
func (a *Agent) introduce(ctx context.Context, line *pipe.Pipe, p *peer) (t terms, err error) {
	h := hello{Oldest: protocol, Newest: protocol, Group: a.group, From: a.identity(), To: p.identity(), Room: a.limits.CallBytes}
	if _, err := rand.Read(h.Nonce[:]); err != nil {
		return t, err
	}
	if err := say(ctx, line, &h); err != nil {
		return t, err
	}
	var w welcome
	if err := hear(ctx, line, &w); err != nil {
		return t, err
	}
	if err := w.Refusal.err(); err != nil {
		return t, err
	}
	if w.Version != protocol {
		return t, fmt.Errorf("%w: version %d was never offered", ErrProtocol, w.Version)
	}
	if !hmac.Equal(w.Proof, a.proof("welcome", &h, w.Nonce)) {
		return t, fmt.Errorf("%w: %s does not know the token of the group", ErrRefused, p.info.Name)
	}
	answer := proof{Proof: a.proof("hello", &h, w.Nonce), Has: p != a.own && p.claim(), Routes: a.devices.routes(p.info.Name)}
	if err := say(ctx, line, &answer); err != nil {
		return t, err
	}
	var d done
	if err := hear(ctx, line, &d); err != nil {
		return t, err
	}
	return terms{w.Room, d.Routes}, d.Refusal.err()
}

// welcome is the part of the other end. It returns who opened the pipe, who is to be
// attached to it then, if it is not this worker itself, and what that has said.
func (a *Agent) welcome(ctx context.Context, line *pipe.Pipe) (p *peer, t terms, err error) {
	// Before that neither the members are known nor who this worker is.
	if err := await(ctx, a.joined); err != nil {
		return nil, t, err
	}
	var h hello
	if err := hear(ctx, line, &h); err != nil {
		return nil, t, err
	}
	if no := a.examine(&h); no != nil {
		return nil, t, errors.Join(no.err(), say(ctx, line, &welcome{Refusal: no}))
	}
	before := a.connFrom(&h)
	answer, no, err := a.challenge(ctx, line, &h)
	if err != nil {
		return nil, t, err
	}
	if no == nil {
		if !a.greetings.over(line) { // who knows the token may wait, as for the store
			return nil, t, errCrowded
		}
		line.Admit()
		p, no = a.admit(ctx, &h, answer, before)
	}
	if no != nil {
		return nil, t, errors.Join(no.err(), say(ctx, line, &done{Refusal: no}))
	}
	if err := say(ctx, line, &done{Routes: a.devices.routes(h.From.Name)}); err != nil {
		if p != a.own {
			p.unaccept()
		}
		return nil, t, err
	}
	return p, terms{h.Room, answer.Routes}, nil
}

// examine finds out whether a pipe is meant for this worker. Whoever reaches its
// address may ask: nothing is looked up for him.
func (a *Agent) examine(h *hello) *refusal {
	switch {
	case h.Oldest > protocol || h.Newest < protocol:
		return &refusal{refusedVersion, fmt.Sprintf("%s speaks version %d, not %d to %d", a.self.Name, protocol, h.Oldest, h.Newest)}
	case h.To != a.identity():
		return &refusal{refusedRestarted, fmt.Sprintf("%s has gone, its address is that of another incarnation or worker", h.To.Name)}
	case h.Group != a.group:
		return &refusal{refusedStranger, fmt.Sprintf("%s is in group %q, not %q", a.self.Name, a.group, h.Group)}
	}
	return nil
}

// connFrom is the pipe that there is to who says hello, if any.
func (a *Agent) connFrom(h *hello) *conn {
	if p := a.peers.find(To(h.From.Name)); p != nil {
		return p.conn.Load()
	}
	return nil
}

// challenge shows that this end knows the token, and has the other end show it.
func (a *Agent) challenge(ctx context.Context, line *pipe.Pipe, h *hello) (answer proof, no *refusal, err error) {
	w := welcome{Version: protocol, Room: a.limits.CallBytes}
	if _, err := rand.Read(w.Nonce[:]); err != nil {
		return answer, nil, err
	}
	w.Proof = a.proof("welcome", h, w.Nonce)
	if err := say(ctx, line, &w); err != nil {
		return answer, nil, err
	}
	if err := hear(ctx, line, &answer); err != nil {
		return answer, nil, err
	}
	if !hmac.Equal(answer.Proof, a.proof("hello", h, w.Nonce)) {
		no = &refusal{refusedToken, fmt.Sprintf("%s does not know the token of the group", h.From.Name)}
	}
	return answer, no, nil
}

// admit decides about a pipe whose other end knows the token: whether that is a
// member, and whether the pipe is the one to take.
func (a *Agent) admit(ctx context.Context, h *hello, answer proof, before *conn) (*peer, *refusal) {
	p, err := a.peerByIdentity(ctx, h.From)
	switch {
	case errors.Is(err, ErrRestarted):
		return nil, &refusal{refusedRestarted, err.Error()}
	case err != nil:
		return nil, &refusal{refusedStranger, err.Error()}
	case p == a.own:
		return p, nil
	}
	return p, p.accept(answer.Has, before)
}

// proof shows that this end knows the token.
func (a *Agent) proof(role string, h *hello, nonce [16]byte) []byte {
	if len(a.token) == 0 {
		return nil
	}
	m := hmac.New(sha256.New, a.token)
	fmt.Fprintf(m, "%s|%q|%q|%d|%x|%q|%d|%x|%x|%x|%d|%d|%d", role, h.Group,
		h.From.Name, h.From.Rank, h.From.Incarnation, h.To.Name, h.To.Rank, h.To.Incarnation, h.Nonce, nonce, h.Oldest, h.Newest, h.Room)
	return m.Sum(nil)
}

func (r *refusal) err() error {
	if r == nil {
		return nil
	}
	switch r.Code {
	case refusedCrossed:
		return errCrossed
	case refusedRestarted:
		return fmt.Errorf("%w: %w: %s", ErrRefused, ErrRestarted, r.Text)
	case refusedClosing:
		return fmt.Errorf("%w: %w: %s", ErrRefused, ErrClosed, r.Text)
	}
	return fmt.Errorf("%w: %s", ErrRefused, r.Text)
}

// helloLimits bound what a stranger's first messages may take.
var helloLimits = codec.Limits{Depth: 8, Bytes: maxHello, Memory: 4 * maxHello, Elements: maxHello}

func say(ctx context.Context, line *pipe.Pipe, v any) error {
	e := codec.NewEncoder(codec.NewRegistry(), helloLimits)
	if err := e.Encode(v); err != nil {
		return err
	}
	data, _, err := e.Finish()
	if err != nil {
		return err
	}
	return line.Write(ctx, &pipe.Message{Metadata: data})
}

func hear(ctx context.Context, line *pipe.Pipe, v any) error {
	in, err := line.Next(ctx)
	if err != nil {
		return err
	}
	d := in.Descriptor()
	if len(d.Payloads)+len(d.Tensors) > 0 {
		return errors.Join(fmt.Errorf("%w: a greeting with tensors", ErrProtocol), in.Discard(ctx))
	}
	if err := in.Read(ctx, pipe.Allocation{}); err != nil {
		return err
	}
	dec := codec.NewDecoder(codec.NewRegistry(), helloLimits)
	if err := dec.Reset(d.Metadata); err != nil {
		return marked(ErrProtocol, err)
	}
	return marked(ErrProtocol, errors.Join(dec.Decode(v), dec.Finish()))
}
