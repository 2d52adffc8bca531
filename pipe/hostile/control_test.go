package hostile_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/race"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

func want(n uint64) []byte { return wire.Control{Kind: wire.WantRead, Number: n}.Append(nil) }
func have(n uint64) []byte { return wire.Control{Kind: wire.HaveRead, Number: n}.Append(nil) }

// goodbye is one with any bytes for a reason.
func goodbye(reason string) []byte { return append([]byte{byte(wire.Goodbye)}, reason...) }

func TestGarbageControl(t *testing.T) {
	asOneOfOurs(t, func(t *testing.T, v *victim, open func(testing.TB) *attack) {
		for name, bad := range map[string][]byte{
			"nothing":                {},
			"want without number":    {1},
			"want with half of it":   {1, 0, 0, 0, 0},
			"have with too much":     append(have(0), 0),
			"reason that is no text": goodbye("\xff\xfe"),
		} {
			t.Run(name, func(t *testing.T) {
				a := open(t)
				a.control.frame(bad)
				requireBroken(t, a.pipe, "control", pipe.ErrProtocol)
				v.unharmed(t)
			})
		}
		for size, reason := range tooLong(wire.MaxControl) {
			a := open(t)
			a.control.header(size)
			requireBroken(t, a.pipe, "control", pipe.ErrProtocol, reason)
			v.unharmed(t)
		}
	})
}

// What a peer of a later version, or a confused one, may say does no harm.
func TestHarmlessControl(t *testing.T) {
	asOneOfOurs(t, func(t *testing.T, v *victim, open func(testing.TB) *attack) {
		a := open(t)
		for _, frame := range [][]byte{{0}, {77, 1, 2, 3}, have(0), have(1<<64 - 1), want(1<<64 - 1), want(5), want(5)} {
			a.control.frame(frame)
		}
		exchangePayload(t, a)
		a.control.frame(want(0))
		require.Equal(t, have(0), a.control.read(), "the first message was read")
		a.finish(t)
	})
}

// A peer may ask about so many messages, and no more.
func TestControlFlood(t *testing.T) {
	asOneOfOurs(t, func(t *testing.T, v *victim, open func(testing.TB) *attack) {
		a := open(t)
		var flood []byte
		for n := range uint64(1<<16 + 1) {
			flood = appendFrame(flood, want(n))
		}
		a.control.send(flood)
		requireBroken(t, a.pipe, "control", pipe.ErrProtocol, pipe.ErrLimit)
		v.unharmed(t)
	})
}

// A peer asks on and on about what was read and never takes the answers: they
// are one number at most, and wait for nobody.
func TestControlAnswersNotTaken(t *testing.T) {
	byTurns(t, overTCP, markedRoles, func(t *testing.T, v *victim, open func(testing.TB) *attack) {
		a := open(t)
		exchangePayload(t, a)
		before := held()
		for range race.Pick(200, 50) {
			a.control.send(bytes.Repeat(appendFrame(nil, want(0)), 1000))
		}
		// While it works through them it makes garbage; nothing of that stays.
		atRest := func() bool { return held() < before+4*overhead }
		require.Eventually(t, atRest, time.Minute, time.Millisecond)
		v.unharmed(t)
		requireError(t, a.pipe.Close(), "", pipe.ErrCloseTimeout)
	}, impatient)
}

// A message that is never confirmed: the wait can be given up, and the pipe
// goes on.
func TestConfirmationWithheld(t *testing.T) {
	asOneOfOurs(t, func(t *testing.T, v *victim, open func(testing.TB) *attack) {
		a := open(t)
		ctx, cancel := context.WithCancel(t.Context())
		confirmed := make(chan error, 1)
		go func() { confirmed <- a.pipe.WriteConfirmed(ctx, &pipe.Message{Metadata: []byte("read this")}) }()
		a.desc.read()
		require.Equal(t, want(0), a.control.read())
		cancel()
		requireError(t, <-confirmed, "", pipe.ErrUnconfirmed, context.Canceled)
		exchangePayload(t, a)
		a.finish(t)
	})
}

// The control connection breaks, in one way or another: the pipe goes on
// without.
func TestControlEndsAlone(t *testing.T) {
	asOneOfOurs(t, func(t *testing.T, v *victim, open func(testing.TB) *attack) {
		for how, leave := range departures {
			t.Run(how, func(t *testing.T) {
				a := open(t)
				leave(a.control)
				err := a.pipe.WriteConfirmed(t.Context(), &pipe.Message{})
				requireError(t, err, "control", pipe.ErrUnconfirmed)
				a.desc.read()
				exchangePayload(t, a)
				v.unharmed(t)
				a.finish(t)
			})
		}
		t.Run("saying goodbye", func(t *testing.T) {
			a := open(t)
			a.control.frame(goodbye("bye"))
			err := a.pipe.WriteConfirmed(t.Context(), &pipe.Message{})
			requireError(t, err, "control", pipe.ErrUnconfirmed)
			a.desc.read()
			exchangePayload(t, a)
			a.finish(t)
		})
	})
}

// What a peer says of itself ends up in errors and logs, where it must not
// pass for something else.
func TestTextOfThePeer(t *testing.T) {
	const nasty = "x\nlevel=ERROR msg=\"all is lost\"\r\x1b[2J\x00\u202e"
	v := newVictim(t)
	first := v.visitWith(t, wire.SpontaneousConnection{ContextName: nasty}.Append(nil))
	b := goodBrochure()
	b.Mark(marker)
	first.frame(b.Append(nil))
	answer, err := wire.DecodeBrochureAnswer(first.read(), wire.Limits{})
	require.NoError(t, err)
	a := &attack{desc: first}
	a.connectFurther(t, v, answer)
	a.pipe, err = v.listener.Accept(t.Context())
	require.NoError(t, err)
	a.control.frame(goodbye(nasty + strings.Repeat("y", 900)))
	a.hangUp()
	_, err = a.pipe.Next(t.Context())
	requireError(t, err, "descriptor", pipe.ErrPeerClosed)
	require.ErrorContains(t, err, "yyy", "the reason is given")
	for _, r := range err.Error() {
		require.True(t, unicode.IsPrint(r), "%q in %q", r, err)
	}
	require.NoError(t, a.pipe.Close())
	v.quiet(t)
}

// A marker that makes no sense is none.
func TestBadMarker(t *testing.T) {
	v := newVictim(t)
	for _, text := range []string{"", "1", "2-1+0", "0-99999999999+1", "a-b+c", strings.Repeat("0", 4000), "0-0+1\xff"} {
		b := goodBrochure()
		b.TransportDomainDescriptors[wire.MarkerName] = text
		a := dialVictimWith(t, v, b)
		require.Nil(t, a.control, "%q", text)
		exchangePayload(t, a)
		a.finish(t)
	}
	v.quiet(t)
	v.alive(t)
}
