package hostile_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

func wantRead(n uint64) []byte { return wire.Control{Kind: wire.WantRead, Number: n}.Append(nil) }
func haveRead(n uint64) []byte { return wire.Control{Kind: wire.HaveRead, Number: n}.Append(nil) }

// closeFrame returns a close frame of the compatible dialect with reason, which may be any bytes.
func closeFrame(reason string) []byte { return append([]byte{byte(wire.Goodbye)}, reason...) }

func TestGarbageControl(t *testing.T) {
	inBothMarkedRoles(t, func(t *testing.T, v *victim, open func(testing.TB) *attack) {
		for name, bad := range map[string][]byte{
			"nothing":                {},
			"want without number":    {1},
			"want with half of it":   {1, 0, 0, 0, 0},
			"have with too much":     append(haveRead(0), 0),
			"reason that is no text": closeFrame("\xff\xfe"),
		} {
			t.Run(name, func(t *testing.T) {
				a := open(t)
				a.control.frame(bad)
				requireBroken(t, a.pipe, "control", pipe.ErrProtocol)
				v.requireHealthy(t)
			})
		}
		for size, reason := range tooLong(wire.MaxControl) {
			a := open(t)
			a.control.header(size)
			requireBroken(t, a.pipe, "control", pipe.ErrProtocol, reason)
			v.requireHealthy(t)
		}
	})
}

// TestHarmlessControl checks that the victim ignores unknown control frames, and frames about
// unknown messages, and still confirms a message.
func TestHarmlessControl(t *testing.T) {
	inBothMarkedRoles(t, func(t *testing.T, v *victim, open func(testing.TB) *attack) {
		a := open(t)
		for _, frame := range [][]byte{{0}, {77, 1, 2, 3}, haveRead(0), haveRead(1<<64 - 1), wantRead(1<<64 - 1), wantRead(5), wantRead(5)} {
			a.control.frame(frame)
		}
		exchangePayload(t, a)
		a.control.frame(wantRead(0))
		require.Equal(t, haveRead(0), a.control.read(), "the first message was read")
		a.closeOrderly(t)
	})
}

// TestControlFlood checks that a peer that requests the confirmation of more messages than the
// limit breaks its pipe with ErrProtocol and ErrLimit.
func TestControlFlood(t *testing.T) {
	inBothMarkedRoles(t, func(t *testing.T, v *victim, open func(testing.TB) *attack) {
		a := open(t)
		var flood []byte
		for n := range uint64(1<<16 + 1) {
			flood = appendFrame(flood, wantRead(n))
		}
		a.control.send(flood)
		requireBroken(t, a.pipe, "control", pipe.ErrProtocol, pipe.ErrLimit)
		v.requireHealthy(t)
	})
}

// TestControlAnswersNotRead checks that a peer that requests confirmations again and again, and
// never reads them, takes no memory and blocks no other pipe.
func TestControlAnswersNotRead(t *testing.T) {
	inRolesSerially(t, overTCP, markedRoles, func(t *testing.T, v *victim, open func(testing.TB) *attack) {
		a := open(t)
		exchangePayload(t, a)
		before := heapInUse()
		for range race.Pick(200, 50) {
			a.control.send(bytes.Repeat(appendFrame(nil, wantRead(0)), 1000))
		}
		// Handling them makes garbage, which is collected.
		collected := func() bool { return heapInUse() < before+4*overhead }
		require.Eventually(t, collected, time.Minute, time.Millisecond)
		v.requireHealthy(t)
		requireError(t, a.pipe.Close(), "", pipe.ErrCloseTimeout)
	}, shortCloseTimeout)
}

// TestConfirmationWithheld checks that WriteConfirmed can be cancelled while it waits for a
// confirmation that never arrives, and that the pipe stays usable.
func TestConfirmationWithheld(t *testing.T) {
	inBothMarkedRoles(t, func(t *testing.T, v *victim, open func(testing.TB) *attack) {
		a := open(t)
		ctx, cancel := context.WithCancel(t.Context())
		confirmed := make(chan error, 1)
		go func() { confirmed <- a.pipe.WriteConfirmed(ctx, &pipe.Message{Metadata: []byte("read this")}) }()
		a.desc.read()
		require.Equal(t, wantRead(0), a.control.read())
		cancel()
		requireError(t, <-confirmed, "", pipe.ErrUnconfirmed, context.Canceled)
		exchangePayload(t, a)
		a.closeOrderly(t)
	})
}

// TestControlConnectionEnds checks that WriteConfirmed fails after the peer has ended the control
// connection, in any way, and that the pipe stays usable for everything else.
func TestControlConnectionEnds(t *testing.T) {
	inBothMarkedRoles(t, func(t *testing.T, v *victim, open func(testing.TB) *attack) {
		for ending, endConn := range connEndings {
			t.Run(ending, func(t *testing.T) {
				a := open(t)
				endConn(a.control)
				err := a.pipe.WriteConfirmed(t.Context(), &pipe.Message{})
				requireError(t, err, "control", pipe.ErrUnconfirmed)
				a.desc.read()
				exchangePayload(t, a)
				v.requireHealthy(t)
				a.closeOrderly(t)
			})
		}
		t.Run("with a close frame", func(t *testing.T) {
			a := open(t)
			a.control.frame(closeFrame("bye"))
			err := a.pipe.WriteConfirmed(t.Context(), &pipe.Message{})
			requireError(t, err, "control", pipe.ErrUnconfirmed)
			a.desc.read()
			exchangePayload(t, a)
			a.closeOrderly(t)
		})
	})
}

// TestPeerTextIsEscaped checks that text that the peer has sent appears in errors without
// unprintable characters, so that it cannot look like other log output.
func TestPeerTextIsEscaped(t *testing.T) {
	const nasty = "x\nlevel=ERROR msg=\"all is lost\"\r\x1b[2J\x00\u202e"
	v := newVictim(t)
	first := v.dialRawWith(t, wire.SpontaneousConnection{ContextName: nasty}.Append(nil))
	b := goodBrochure()
	b.Mark(marker)
	first.frame(b.Append(nil))
	answer, err := wire.DecodeBrochureAnswer(first.read(), wire.Limits{})
	require.NoError(t, err)
	a := &attack{desc: first}
	a.connectFurther(t, v, answer)
	a.pipe, err = v.listener.Accept(t.Context())
	require.NoError(t, err)
	a.control.frame(closeFrame(nasty + strings.Repeat("y", 900)))
	a.closeConns()
	_, err = a.pipe.Next(t.Context())
	requireError(t, err, "descriptor", pipe.ErrPeerClosed)
	require.ErrorContains(t, err, "yyy", "the reason is given")
	for _, r := range err.Error() {
		require.True(t, unicode.IsPrint(r), "%q in %q", r, err)
	}
	require.NoError(t, a.pipe.Close())
	v.requireIdle(t)
}

// TestBadMarker checks that an offer with a malformed marker of this library is treated as that of
// a C++ client.
func TestBadMarker(t *testing.T) {
	v := newVictim(t)
	for _, text := range []string{"", "1", "2-1+0", "0-99999999999+1", "a-b+c", strings.Repeat("0", 4000), "0-0+1\xff"} {
		b := goodBrochure()
		b.TransportDomainDescriptors[wire.MarkerName] = text
		a := dialVictimWith(t, v, b)
		require.Nil(t, a.control, "%q", text)
		exchangePayload(t, a)
		a.closeOrderly(t)
	}
	v.requireIdle(t)
	v.requireServing(t)
}
