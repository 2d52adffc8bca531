package hostile_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// A peer that gives up what never comes is cut off at the limit.
func TestNativeTooManyEarlyAborts(t *testing.T) {
	inBothNativeRoles(t, func(t *testing.T, v *victim, open func(testing.TB) *intruder) {
		n := open(t)
		var p []byte
		for i := range uint64(1<<16 + 1) {
			p = native.Control{Kind: native.Abort, Number: i}.Append(p, false)
		}
		n.say(controlStream, p)
		n.requireDown([]string{"control"}, pipe.ErrProtocol, pipe.ErrLimit)
		v.unharmed(t)
	})
}

// So is one that asks about what was never sent.
func TestNativeTooManyQuestions(t *testing.T) {
	inBothNativeRoles(t, func(t *testing.T, v *victim, open func(testing.TB) *intruder) {
		n := open(t)
		var p []byte
		for i := range uint64(1<<16 + 1) {
			p = native.Control{Kind: native.WantRead, Number: i}.Append(p, false)
		}
		n.say(controlStream, p)
		n.requireDown([]string{"control"}, pipe.ErrProtocol, pipe.ErrLimit)
		v.unharmed(t)
	})
}

// A peer makes this end discard many messages, and never reads that it did: what
// is left unsaid is bounded, and then the pipe ends.
func TestNativeControlNeverRead(t *testing.T) {
	controlNeverRead(t, newVictim(t))
}

func controlNeverRead(t *testing.T, v *victim) {
	n := dialNatively(t, v)
	before := held()
	large := text(largeMessage(1 << 20))
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		for {
			in, err := n.pipe.Next(t.Context())
			if err != nil || in.Discard(t.Context()) != nil {
				return
			}
		}
	}()
	batch := []byte(strings.Repeat(string(large), 500))
	for done := false; !done; {
		n.say(messageStream, batch)
		select {
		case <-n.pipe.Done():
			done = true
		default:
			n.mu.Lock()
			done = n.over
			n.mu.Unlock()
		}
	}
	<-stop
	grown := held() - min(before, held())
	t.Logf("%d KiB held", grown>>10)
	require.Less(t, grown, uint64(16<<20))
	n.requireDown([]string{"control"}, pipe.ErrProtocol)
	v.quiet(t)
	v.alive(t)
}
