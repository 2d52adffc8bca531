package hostile_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// TestNativeNotChosen checks that a pipe uses the compatible dialect if the client's marker has
// only version 0, or if it has no marker, and that the plan has the reason.
func TestNativeNotChosen(t *testing.T) {
	v := newVictim(t)
	for marker, reason := range map[string]string{
		"":      "the peer does not know it",
		"0-0+1": "versions 0-0",
	} {
		t.Run("marker "+marker, func(t *testing.T) {
			b := goodBrochure()
			if marker != "" {
				b.TransportDomainDescriptors[wire.MarkerName] = marker
			}
			a := dialVictimWith(t, v, b)
			require.Equal(t, pipe.DialectCompatible, a.pipe.Plan().Dialect)
			require.Equal(t, pipe.CandidateDialect, a.pipe.Plan().Refused[0].Kind)
			require.Contains(t, a.pipe.Plan().Refused[0].Reason, reason)
			a.pipe.Abort(pipe.ErrClosed)
			a.closeConns()
		})
	}
	v.requireIdle(t)
	v.requireServing(t)
}

// TestNoCommonVersion checks that a server rejects a client whose lowest version is higher than the
// versions of the server: the client does not support the compatible dialect either.
func TestNoCommonVersion(t *testing.T) {
	v := newVictim(t)
	for _, marker := range []string{"2-9+1", "7-7+0"} {
		b := goodBrochure()
		b.TransportDomainDescriptors[wire.MarkerName] = marker
		r := v.dialRawWith(t, hello(), b.Append(nil))
		v.log.requireRejected(t, r.local(), pipe.ErrDialect)
		r.waitClosed()
		r.closeTCP()
	}
	v.requireIdle(t)
	v.requireServing(t)
}

// TestNativeLaterVersion checks that a client that also offers later versions and unknown features
// gets the current version, and only known features, in the answer.
func TestNativeLaterVersion(t *testing.T) {
	v := newVictim(t)
	b := goodBrochure()
	b.TransportDomainDescriptors[wire.MarkerName] = "0-12+ffffffff and more"
	first, answer := v.sendOffer(t, b)
	chosen, ok := answer.Marker()
	require.True(t, ok)
	all := nativeMarker
	all.Features |= wire.FeatureCompression | wire.FeatureJoined | wire.FeatureEager
	require.Equal(t, all, chosen)
	n := newNativeAttack(t, first)
	first.send(muxHeader(muxCredit, muxSYN, messageStream, 0), muxHeader(muxCredit, muxSYN, controlStream, 0))
	n.startReading()
	var err error
	n.pipe, err = v.listener.Accept(t.Context())
	require.NoError(t, err)
	n.exchange()
	n.closeOrderly()
	v.requireIdle(t)
}

// TestNativeRequired checks that an end that requires the native dialect rejects, as a client and
// as a server, a peer that does not offer or choose it.
func TestNativeRequired(t *testing.T) {
	v := newVictim(t, func(o *pipe.Options) { o.Dialect = pipe.DialectNative })
	r := v.dialRawWith(t, hello(), goodBrochure().Append(nil))
	v.log.requireRejected(t, r.local(), pipe.ErrDialect)
	r.waitClosed()

	l := newRogueListener(t)
	result := l.dialFrom(v)
	first := l.acceptOffer()
	first.frame(goodAnswer(l.Addr().String()).Append(nil))
	requireDialFailed(t, l, <-result, pipe.ErrDialect)
	first.waitClosed()

	compatible := options("compatible")
	compatible.Dialect = pipe.DialectCompatible
	c := newContext(t, compatible)
	_, err := c.Dial(t.Context(), v.url())
	require.ErrorIs(t, err, pipe.ErrHandshake)
	listener, err := c.Listen(t.Context(), "uv://127.0.0.1:0")
	require.NoError(t, err)
	_, err = v.Dial(t.Context(), listener.URLs()[0])
	require.ErrorIs(t, err, pipe.ErrDialect)
	v.requireIdle(t)
	v.requireServing(t)
}

// TestNativeBadAnswers checks that Dial fails with ErrProtocol if the listener's answer chooses a
// version that was not offered, or lacks the id of the bulk connection.
func TestNativeBadAnswers(t *testing.T) {
	v := newVictim(t)
	for name, change := range map[string]func(a *wire.BrochureAnswer){
		"no id for bulk": func(a *wire.BrochureAnswer) { delete(a.TransportRegistrationIDs, wire.BulkConnection) },
		"a later version": func(a *wire.BrochureAnswer) {
			a.Mark(wire.Marker{MinVersion: 2, MaxVersion: 2})
			a.TransportRegistrationIDs = nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newRogueListener(t)
			result := l.dialFrom(v)
			first := l.acceptOffer()
			a := nativeAnswer(l.Addr().String())
			change(a)
			first.frame(a.Append(nil))
			requireDialFailed(t, l, <-result, pipe.ErrHandshake, pipe.ErrProtocol)
			first.waitClosed()
		})
	}
	v.requireIdle(t)
}
