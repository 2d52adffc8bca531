package hostile_test

import (
	"testing"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// TestTLSOpenPipes runs attacks of other tests on open pipes of the compatible dialect over TLS,
// with the same checks.
func TestTLSOpenPipes(t *testing.T) {
	t.Parallel()
	patiently, hastily := []func(*pipe.Options){}, []func(*pipe.Options){shortCloseTimeout}
	for name, c := range map[string]struct {
		attack func(t *testing.T, v *victim, open func(testing.TB) *attack)
		adjust []func(*pipe.Options)
	}{
		"garbage descriptor":         {garbageDescriptor, patiently},
		"garbage reply":              {garbageReply, patiently},
		"length of pipe frames":      {lengthOfPipeFrames, patiently},
		"length of channel frames":   {lengthOfChannelFrames, patiently},
		"connection reset":           {connectionReset, patiently},
		"one connection ends":        {oneConnectionEnds, hastily},
		"descriptor connection ends": {descriptorConnectionEnds, hastily},
		"peer closes":                {peerCloses, patiently},
		"frames after close":         {framesAfterClose, patiently},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inRoles(t, overTLS(t), roles, c.attack, c.adjust...)
		})
	}
}

// TestTLSNativePipes runs attacks of other tests on open pipes of the native dialect over TLS, with
// the same checks.
func TestTLSNativePipes(t *testing.T) {
	t.Parallel()
	for name, attack := range map[string]func(t *testing.T, v *victim, open func(testing.TB) *nativeAttack){
		"malformed messages":  malformedMessages,
		"malformed control":   malformedControl,
		"malformed chunks":    malformedChunks,
		"unwanted chunks":     unwantedChunks,
		"session broken":      sessionBroken,
		"stream flood":        streamFlood,
		"ignored control":     ignoredControl,
		"bad targets":         badTargets,
		"bulk ends":           bulkEnds,
		"bulk not read":       bulkNotRead,
		"targets cross abort": targetsCrossAbort,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inRoles(t, overTLS(t), nativeRoles, attack)
		})
	}
	t.Run("close frames", func(t *testing.T) {
		t.Parallel()
		inRoles(t, overTLS(t), nativeRoles, closeFrames, shortCloseTimeout)
	})
}

// TestTLSOpening runs attacks of other tests on the handshake of a pipe over TLS, after the
// handshake of TLS, with the same checks.
func TestTLSOpening(t *testing.T) {
	t.Parallel()
	for name, attack := range map[string]func(t *testing.T, v *victim){
		"garbage first packet":           garbageFirstPacket,
		"garbage brochure":               garbageBrochure,
		"garbage answer":                 garbageAnswer,
		"slow client":                    slowClient,
		"slow listener":                  slowListener,
		"client closes during handshake": clientClosesDuringHandshake,
		"streams never opened":           streamsNeverOpened,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			attack(t, overTLS(t).newVictim(t, shortHandshakeTimeout))
		})
	}
}

func TestTLSConnectionFlood(t *testing.T) {
	t.Parallel()
	connectionFlood(t, overTLS(t))
}

// TestTLSMemory checks over TLS what other tests check over TCP: how much memory a peer can make
// this end allocate with claims and floods.
func TestTLSMemory(t *testing.T) {
	over := overTLS(t)
	t.Run("handshake claims", func(t *testing.T) { memoryOfHandshakeClaims(t, over) })
	t.Run("pipe claims", func(t *testing.T) { inRolesSerially(t, over, roles, memoryOfPipeClaims) })
	t.Run("flood", func(t *testing.T) { memoryOfFlood(t, over.newVictim(t)) })
	t.Run("native flood", func(t *testing.T) { nativeMemoryOfFlood(t, over.newVictim(t)) })
}
