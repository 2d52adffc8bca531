package hostile_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// stall is a point at which a client can stop in the middle of opening a pipe. It
// returns the connection on which the victim waits.
type stall func(t testing.TB, v *victim) *raw

var stalls = map[string]stall{
	"a silent connection": func(t testing.TB, v *victim) *raw { return v.visit(t) },
	"half a length": func(t testing.TB, v *victim) *raw {
		r := v.visit(t)
		r.send([]byte{15, 0, 0, 0})
		return r
	},
	"half a packet": func(t testing.TB, v *victim) *raw {
		r := v.visit(t)
		r.send(appendFrame(nil, hello())[:12])
		return r
	},
	"no brochure": func(t testing.TB, v *victim) *raw { return v.visitWith(t, hello()) },
	"half a brochure": func(t testing.TB, v *victim) *raw {
		r := v.visitWith(t, hello())
		r.send(appendFrame(nil, goodBrochure().Append(nil))[:20])
		return r
	},
	"no further connection": func(t testing.TB, v *victim) *raw {
		first, _ := v.introduce(t, goodBrochure())
		return first
	},
	"no reply connection": func(t testing.TB, v *victim) *raw {
		first, answer := v.introduce(t, goodBrochure())
		v.visitWith(t, request(answer.ChannelRegistrationIDs[basic.Name][0]))
		return first
	},
	"no channel connection": func(t testing.TB, v *victim) *raw {
		first, answer := v.introduce(t, goodBrochure())
		v.visitWith(t, request(answer.TransportRegistrationIDs[wire.ReplyConnection]))
		return first
	},
	"a byte at a time": func(t testing.TB, v *victim) *raw {
		r := v.visit(t)
		go r.drip(appendFrame(appendFrame(nil, hello()), goodBrochure().Append(nil)))
		return r
	},
}

// awaited is what the victim says that it waits for, by stall.
var awaited = map[string]string{
	"a silent connection":   "the first words",
	"half a length":         "the first words",
	"half a packet":         "the first words",
	"a byte at a time":      "", // where time runs out depends on the machine
	"no brochure":           "what the peer offers",
	"half a brochure":       "what the peer offers",
	"no further connection": "the other connections",
	"no reply connection":   "the other connections",
	"no channel connection": "the other connections",
}

// drip sends p so slowly that a hurried victim gives up long before the end.
func (r *raw) drip(p []byte) {
	tick := time.NewTicker(soon / 50)
	defer tick.Stop()
	for i := range p {
		<-tick.C
		if _, err := r.Write(p[i : i+1]); err != nil {
			return
		}
	}
}

// A handshake that does not come to its end in time is given up, and its slot
// becomes free.
func TestSlowClient(t *testing.T) {
	t.Parallel()
	slowClient(t, newVictim(t, hurried))
}

func slowClient(t *testing.T, v *victim) {
	visitors := map[string]*raw{}
	for name, stall := range stalls {
		visitors[name] = stall(t, v)
	}
	v.unharmed(t)
	for name, r := range visitors {
		t.Run(name, func(t *testing.T) {
			err := v.log.requireRefused(t, r.local(), pipe.ErrHandshake, pipe.ErrHandshakeTimeout)
			require.ErrorContains(t, err, "timed out while waiting for "+awaited[name])
			require.NotErrorIs(t, err, pipe.ErrClosed, "the connections that were closed for it")
			r.ended()
		})
	}
	v.quiet(t)
	v.alive(t)
}

// The same from the other side: the answer does not come, or takes too long.
func TestSlowListener(t *testing.T) {
	t.Parallel()
	slowListener(t, newVictim(t, hurried))
}

func slowListener(t *testing.T, v *victim) {
	answer := appendFrame(nil, goodAnswer("127.0.0.1:1").Append(nil))
	type visit struct {
		trap   *trap
		first  *raw
		result <-chan dialled
	}
	visits := map[string]visit{}
	for name, stall := range map[string]func(first *raw){
		"no answer":        func(*raw) {},
		"half a length":    func(first *raw) { first.send(answer[:4]) },
		"half an answer":   func(first *raw) { first.send(answer[:len(answer)/2]) },
		"a byte at a time": func(first *raw) { go first.drip(answer) },
	} {
		l := newTrap(t)
		result := l.lure(v)
		visits[name] = visit{l, l.take(), result}
		stall(visits[name].first)
	}
	v.unharmed(t)
	for name, visit := range visits {
		t.Run(name, func(t *testing.T) {
			d := <-visit.result
			requireDialFailed(t, visit.trap, d, pipe.ErrHandshakeTimeout)
			require.ErrorContains(t, d.err, "timed out while waiting for the answer")
			var timeout interface{ Timeout() bool }
			require.True(t, errors.As(d.err, &timeout) && timeout.Timeout())
			visit.first.ended()
		})
	}
	v.quiet(t)
	v.alive(t)
}

// Whoever dials such a listener may give up earlier.
func TestSlowListenerCancelled(t *testing.T) {
	v := newVictim(t)
	l := newTrap(t)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan dialled, 1)
	go func() {
		p, err := v.Dial(ctx, l.url())
		result <- dialled{p, err}
	}()
	first := l.prey()
	cancel()
	requireDialFailed(t, l, <-result, context.Canceled)
	first.ended()
	v.quiet(t)
}

// A peer that stops between two messages, or in the middle of one, holds up
// its own pipe only; the call that waits for it can be cancelled.
func TestSlowPipe(t *testing.T) {
	t.Parallel()
	inBothRoles(t, func(t *testing.T, v *victim, open func(testing.TB) *attack) {
		for name, begin := range map[string]func(a *attack){
			"within a payload": func(a *attack) {
				a.desc.frame(payloadDescriptor(1 << 20))
				a.desc.header(1 << 20)
				a.desc.send([]byte("a few"))
			},
			"before a tensor": func(a *attack) { a.desc.frame(tensorDescriptor(8)) },
			"within a tensor": func(a *attack) {
				a.desc.frame(tensorDescriptor(8))
				a.basic.header(8)
				a.basic.send([]byte("few"))
			},
		} {
			t.Run(name, func(t *testing.T) {
				a := open(t)
				begin(a)
				in, err := a.pipe.Next(t.Context())
				require.NoError(t, err)
				base, cancel := context.WithCancel(t.Context())
				defer cancel()
				begun := make(chan struct{})
				ctx := &looked{Context: base, at: func() { close(begun) }}
				read := make(chan error, 1)
				go func() { read <- in.Read(ctx, pipe.NewAllocation(in.Descriptor())) }()
				<-begun
				v.unharmed(t)
				cancel()
				requireError(t, <-read, "", pipe.ErrCancelled, context.Canceled)
				v.unharmed(t)
			})
		}
	})
}
