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

// stall stops a client at some point of the handshake. It returns the connection on which the
// victim waits.
type stall func(t testing.TB, v *victim) *raw

var stalls = map[string]stall{
	"a silent connection": func(t testing.TB, v *victim) *raw { return v.dialRaw(t) },
	"half a length": func(t testing.TB, v *victim) *raw {
		r := v.dialRaw(t)
		r.send([]byte{15, 0, 0, 0})
		return r
	},
	"half a packet": func(t testing.TB, v *victim) *raw {
		r := v.dialRaw(t)
		r.send(appendFrame(nil, hello())[:12])
		return r
	},
	"no brochure": func(t testing.TB, v *victim) *raw { return v.dialRawWith(t, hello()) },
	"half a brochure": func(t testing.TB, v *victim) *raw {
		r := v.dialRawWith(t, hello())
		r.send(appendFrame(nil, goodBrochure().Append(nil))[:20])
		return r
	},
	"no further connection": func(t testing.TB, v *victim) *raw {
		first, _ := v.sendOffer(t, goodBrochure())
		return first
	},
	"no reply connection": func(t testing.TB, v *victim) *raw {
		first, answer := v.sendOffer(t, goodBrochure())
		v.dialRawWith(t, request(answer.ChannelRegistrationIDs[basic.Name][0]))
		return first
	},
	"no channel connection": func(t testing.TB, v *victim) *raw {
		first, answer := v.sendOffer(t, goodBrochure())
		v.dialRawWith(t, request(answer.TransportRegistrationIDs[wire.ReplyConnection]))
		return first
	},
	"a byte at a time": func(t testing.TB, v *victim) *raw {
		r := v.dialRaw(t)
		go r.sendSlowly(appendFrame(appendFrame(nil, hello()), goodBrochure().Append(nil)))
		return r
	},
}

// stallErrors are the errors' texts about what the victim waits for, by stall.
var stallErrors = map[string]string{
	"a silent connection":   "the first packet",
	"half a length":         "the first packet",
	"half a packet":         "the first packet",
	"a byte at a time":      "", // depends on the speed of the machine
	"no brochure":           "the peer's offer",
	"half a brochure":       "the peer's offer",
	"no further connection": "the other connections",
	"no reply connection":   "the other connections",
	"no channel connection": "the other connections",
}

// sendSlowly sends p byte by byte, with pauses, so that a handshake with a short timeout fails
// before the end. It returns when a write fails.
func (r *raw) sendSlowly(p []byte) {
	tick := time.NewTicker(handshakeTimeout / 50)
	defer tick.Stop()
	for i := range p {
		<-tick.C
		if _, err := r.Write(p[i : i+1]); err != nil {
			return
		}
	}
}

// TestSlowClient checks that the handshake of a client that is not complete in time fails, and that
// its slot becomes free.
func TestSlowClient(t *testing.T) {
	t.Parallel()
	slowClient(t, newVictim(t, shortHandshakeTimeout))
}

func slowClient(t *testing.T, v *victim) {
	visitors := map[string]*raw{}
	for name, stall := range stalls {
		visitors[name] = stall(t, v)
	}
	v.requireHealthy(t)
	for name, r := range visitors {
		t.Run(name, func(t *testing.T) {
			err := v.log.requireRejected(t, r.local(), pipe.ErrHandshake, pipe.ErrHandshakeTimeout)
			require.ErrorContains(t, err, "timed out while waiting for "+stallErrors[name])
			require.NotErrorIs(t, err, pipe.ErrClosed, "the error must not be that of the closed connections")
			r.waitClosed()
		})
	}
	v.requireIdle(t)
	v.requireServing(t)
}

// TestSlowListener checks that the victim's Dial fails with a timeout if the listener's answer does
// not arrive in time.
func TestSlowListener(t *testing.T) {
	t.Parallel()
	slowListener(t, newVictim(t, shortHandshakeTimeout))
}

func slowListener(t *testing.T, v *victim) {
	answer := appendFrame(nil, goodAnswer("127.0.0.1:1").Append(nil))
	type attempt struct {
		listener *rogueListener
		first    *raw
		result   <-chan dialResult
	}
	attempts := map[string]attempt{}
	for name, stall := range map[string]func(first *raw){
		"no answer":        func(*raw) {},
		"half a length":    func(first *raw) { first.send(answer[:4]) },
		"half an answer":   func(first *raw) { first.send(answer[:len(answer)/2]) },
		"a byte at a time": func(first *raw) { go first.sendSlowly(answer) },
	} {
		l := newRogueListener(t)
		result := l.dialFrom(v)
		attempts[name] = attempt{l, l.acceptRaw(), result}
		stall(attempts[name].first)
	}
	v.requireHealthy(t)
	for name, attempt := range attempts {
		t.Run(name, func(t *testing.T) {
			d := <-attempt.result
			requireDialFailed(t, attempt.listener, d, pipe.ErrHandshakeTimeout)
			require.ErrorContains(t, d.err, "timed out while waiting for the answer")
			var timeout interface{ Timeout() bool }
			require.True(t, errors.As(d.err, &timeout) && timeout.Timeout())
			attempt.first.waitClosed()
		})
	}
	v.requireIdle(t)
	v.requireServing(t)
}

// TestSlowListenerCancelled checks that the victim's Dial can be cancelled before the answer
// arrives, and then closes its connection.
func TestSlowListenerCancelled(t *testing.T) {
	v := newVictim(t)
	l := newRogueListener(t)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan dialResult, 1)
	go func() {
		p, err := v.Dial(ctx, l.url())
		result <- dialResult{p, err}
	}()
	first := l.acceptOffer()
	cancel()
	requireDialFailed(t, l, <-result, context.Canceled)
	first.waitClosed()
	v.requireIdle(t)
}

// TestSlowPipe checks that a peer that stops sending before a tensor or within a part blocks only
// its own pipe, and that the blocked Read can be cancelled.
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
				ctx := &doneHook{Context: base, at: func() { close(begun) }}
				read := make(chan error, 1)
				go func() { read <- in.Read(ctx, pipe.NewAllocation(in.Descriptor())) }()
				<-begun
				v.requireHealthy(t)
				cancel()
				requireError(t, <-read, "", pipe.ErrCancelled, context.Canceled)
				v.requireHealthy(t)
			})
		}
	})
}
