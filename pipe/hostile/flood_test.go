package hostile_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// TestConnectionFlood checks that the victim closes connections beyond its limit at once, and works
// as before afterwards.
func TestConnectionFlood(t *testing.T) { connectionFlood(t, overTCP) }

func connectionFlood(t *testing.T, over network) {
	const limit = 16
	visitors := over.scaled(200)
	for name, c := range map[string]struct {
		greeting []byte
		slots    int
	}{
		// A connection without a first packet may be the bulk connection of the healthy
		// pipe, for which one more slot is reserved.
		"silent":           {nil, limit + 1},
		"half a packet":    {appendFrame(nil, hello())[:12], limit + 1},
		"without brochure": {appendFrame(nil, hello()), limit},
	} {
		t.Run(name, func(t *testing.T) {
			greeting, slots := c.greeting, c.slots
			v := over.newVictim(t, func(o *pipe.Options) { o.Limits.MaxHandshakesInProgress = limit })
			var conns []*raw
			for range visitors {
				r := v.dialRaw(t)
				r.send(greeting)
				conns = append(conns, r)
			}
			waitFor(t, func() bool { return v.Stats().ConnectionsRefused == uint64(visitors-slots) }, "all others are rejected")
			require.Equal(t, slots, v.Stats().HandshakesInProgress)
			v.requireHealthy(t)

			_, err := newContext(t, v.over.options("latecomer")).Dial(t.Context(), v.url())
			requireError(t, err, "", pipe.ErrHandshake)
			require.Equal(t, visitors-slots+1, int(v.Stats().ConnectionsRefused))
			waitFor(t, func() bool { return v.log.count(pipe.ErrLimit) == visitors-slots+1 }, "a record of each")

			for _, r := range conns {
				r.Close()
			}
			v.requireIdle(t)
			v.requireServing(t)
		})
	}
}

// TestAcceptBacklogFull checks that as many open pipes as the backlog holds wait for Accept and can
// be used later, and that a further one fails when its handshake times out.
func TestAcceptBacklogFull(t *testing.T) {
	t.Parallel()
	const backlog = 2
	v := newVictim(t, shortHandshakeTimeout, func(o *pipe.Options) { o.Limits.MaxAcceptBacklog = backlog })
	v.requireIdle(t) // the healthy pipe is counted after Accept has returned
	done := v.Stats().HandshakesDone
	var waiting []*attack
	for range backlog {
		waiting = append(waiting, v.dialUnaccepted(t))
	}
	waitFor(t, func() bool { return v.Stats().HandshakesDone == done+backlog }, "the backlog fills up")
	rejected := v.dialUnaccepted(t)
	err := v.log.requireRejected(t, rejected.desc.local(), pipe.ErrHandshakeTimeout)
	require.ErrorContains(t, err, "timed out while waiting for Accept")
	rejected.desc.waitClosed()
	v.requireHealthy(t)

	for range waiting {
		p, err := v.listener.Accept(t.Context())
		require.NoError(t, err)
		i := 0
		for p.RemoteAddr() != waiting[i].desc.local() {
			i++
		}
		waiting[i].pipe = p
		exchangePayload(t, waiting[i])
		waiting[i].closeOrderly(t)
	}
	v.requireIdle(t)
	v.requireServing(t)
}

// dialUnaccepted opens a pipe to the victim as a client and returns it as an attack, without the
// victim's end, because it does not call Accept.
func (v *victim) dialUnaccepted(t testing.TB) *attack {
	t.Helper()
	a := &attack{}
	a.connect(t, v, goodBrochure())
	return a
}
