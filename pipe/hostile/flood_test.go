package hostile_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// More connections than the limit allows are closed at once; when the flood
// has gone everything is as before.
func TestConnectionFlood(t *testing.T) { connectionFlood(t, overTCP) }

func connectionFlood(t *testing.T, over carrier) {
	const limit = 16
	visitors := over.many(200)
	for name, c := range map[string]struct {
		greeting []byte
		slots    int
	}{
		// Whoever has not said what for it comes may be the bulk connection of the
		// healthy pipe, for which there is a place of its own.
		"silent":           {nil, limit + 1},
		"half a packet":    {appendFrame(nil, hello())[:12], limit + 1},
		"without brochure": {appendFrame(nil, hello()), limit},
	} {
		t.Run(name, func(t *testing.T) {
			greeting, slots := c.greeting, c.slots
			v := over.newVictim(t, func(o *pipe.Options) { o.Limits.HandshakesInProgress = limit })
			var crowd []*raw
			for range visitors {
				r := v.visit(t)
				r.send(greeting)
				crowd = append(crowd, r)
			}
			await(t, func() bool { return v.Stats().ConnectionsRefused == uint64(visitors-slots) }, "all others are refused")
			require.Equal(t, slots, v.Stats().HandshakesInProgress)
			v.unharmed(t)

			_, err := newContext(t, v.over.options("latecomer")).Dial(t.Context(), v.url())
			requireError(t, err, "", pipe.ErrHandshake)
			require.Equal(t, visitors-slots+1, int(v.Stats().ConnectionsRefused))
			await(t, func() bool { return v.log.count(pipe.ErrLimit) == visitors-slots+1 }, "a line about each")

			for _, r := range crowd {
				r.Close()
			}
			v.quiet(t)
			v.alive(t)
		})
	}
}

// Open pipes that nobody accepts wait in line as far as the backlog goes. Those
// behind it hold their slots until the handshake times out.
func TestAcceptBacklogFull(t *testing.T) {
	t.Parallel()
	const backlog = 2
	v := newVictim(t, hurried, func(o *pipe.Options) { o.Limits.AcceptBacklog = backlog })
	v.quiet(t) // the healthy pipe is counted behind being accepted
	done := v.Stats().HandshakesDone
	var waiting []*attack
	for range backlog {
		waiting = append(waiting, v.knock(t))
	}
	await(t, func() bool { return v.Stats().HandshakesDone == done+backlog }, "the backlog fills up")
	late := v.knock(t)
	err := v.log.requireRefused(t, late.desc.local(), pipe.ErrHandshakeTimeout)
	require.ErrorContains(t, err, "timed out while waiting for somebody who accepts the pipe")
	late.desc.ended()
	v.unharmed(t)

	for range waiting {
		p, err := v.listener.Accept(t.Context())
		require.NoError(t, err)
		i := 0
		for p.RemoteAddr() != waiting[i].desc.local() {
			i++
		}
		waiting[i].pipe = p
		exchangePayload(t, waiting[i])
		waiting[i].finish(t)
	}
	v.quiet(t)
	v.alive(t)
}

// knock opens a pipe that nobody accepts.
func (v *victim) knock(t testing.TB) *attack {
	t.Helper()
	a := &attack{}
	a.connect(t, v, goodBrochure())
	return a
}
