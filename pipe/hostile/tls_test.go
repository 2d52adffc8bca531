package hostile_test

import (
	"testing"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// A certificate makes no peer honest: these are the attacks of other tests, under
// TLS.

// On pipes in the compatible dialect.
func TestTLSOpenPipes(t *testing.T) {
	t.Parallel()
	patiently, hastily := []func(*pipe.Options){}, []func(*pipe.Options){impatient}
	for name, c := range map[string]struct {
		attack func(t *testing.T, v *victim, open func(testing.TB) *attack)
		adjust []func(*pipe.Options)
	}{
		"garbage descriptor":         {garbageDescriptor, patiently},
		"garbage reply":              {garbageReply, patiently},
		"length of pipe frames":      {lengthOfPipeFrames, patiently},
		"length of channel frames":   {lengthOfChannelFrames, patiently},
		"connection reset":           {connectionReset, patiently},
		"connection ends alone":      {connectionEndsAlone, hastily},
		"descriptor connection ends": {descriptorConnectionEnds, hastily},
		"peer closes":                {peerCloses, patiently},
		"frames after close":         {framesAfterClose, patiently},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asWhom(t, overTLS(t), roles, c.attack, c.adjust...)
		})
	}
}

// On native pipes.
func TestTLSNativePipes(t *testing.T) {
	t.Parallel()
	for name, attack := range map[string]func(t *testing.T, v *victim, open func(testing.TB) *intruder){
		"malformed messages": malformedMessages,
		"malformed control":  malformedControl,
		"malformed chunks":   malformedChunks,
		"unwanted chunks":    unwantedChunks,
		"session broken":     sessionBroken,
		"stream flood":       streamFlood,
		"idle talk":          idleTalk,
		"bad targets":        badTargets,
		"bulk ends":          bulkEnds,
		"bulk not taken in":  bulkNotTakenIn,
		"targets too late":   targetsCrossAbort,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asWhom(t, overTLS(t), nativeRoles, attack)
		})
	}
	t.Run("goodbyes", func(t *testing.T) {
		t.Parallel()
		asWhom(t, overTLS(t), nativeRoles, goodbyes, impatient)
	})
}

// While a pipe is opened, behind the handshake of TLS.
func TestTLSOpening(t *testing.T) {
	t.Parallel()
	for name, attack := range map[string]func(t *testing.T, v *victim){
		"garbage first packet":    garbageFirstPacket,
		"garbage brochure":        garbageBrochure,
		"garbage answer":          garbageAnswer,
		"slow client":             slowClient,
		"slow listener":           slowListener,
		"client leaves handshake": clientLeavesHandshake,
		"streams never opened":    streamsNeverOpened,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			attack(t, overTLS(t).newVictim(t, hurried))
		})
	}
}

func TestTLSConnectionFlood(t *testing.T) {
	t.Parallel()
	connectionFlood(t, overTLS(t))
}

// What a peer can make this end hold.
func TestTLSMemory(t *testing.T) {
	over := overTLS(t)
	t.Run("handshake claims", func(t *testing.T) { memoryOfHandshakeClaims(t, over) })
	t.Run("pipe claims", func(t *testing.T) { byTurns(t, over, roles, memoryOfPipeClaims) })
	t.Run("flood", func(t *testing.T) { memoryOfFlood(t, over.newVictim(t)) })
	t.Run("native flood", func(t *testing.T) { nativeMemoryOfFlood(t, over.newVictim(t)) })
}
