package hostile_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// TestUnknownID checks that a connection with an id that no pipe expects is closed, and has no
// other effect.
func TestUnknownID(t *testing.T) {
	v := newVictim(t)
	for _, id := range []uint64{0, 1, 2, 41, 1<<63 - 1, 1 << 63, 1<<64 - 1} {
		t.Run(fmt.Sprint(id), func(t *testing.T) {
			requireIDRejected(t, v, id)
			v.requireHealthy(t)
		})
	}
	v.requireIdle(t)
	v.requireServing(t)
}

func requireIDRejected(t testing.TB, v *victim, id uint64) {
	t.Helper()
	r := v.dialRawWith(t, request(id))
	v.log.requireRejected(t, r.local(), pipe.ErrProtocol)
	r.waitClosed()
}

// TestGuessedID checks that connections with guessed ids are rejected during a client's handshake,
// and that this handshake then succeeds. The guesses are ids that TensorPipe would have chosen,
// neighbours of the actual ids, and random ones.
func TestGuessedID(t *testing.T) {
	v := newVictim(t)
	first, answer := v.sendOffer(t, goodBrochure())
	reply := answer.TransportRegistrationIDs[wire.ReplyConnection]
	channel := answer.ChannelRegistrationIDs[basic.Name][0]
	guesses := []uint64{0, 1, 2, 3, 4, reply - 1, reply + 1, channel - 1, channel + 1, reply ^ channel}
	for range 10 {
		guesses = append(guesses, rand.Uint64())
	}
	for _, id := range guesses {
		requireIDRejected(t, v, id)
	}
	a := &attack{desc: first, basic: v.dialRawWith(t, request(channel)), reply: v.dialRawWith(t, request(reply))}
	var err error
	a.pipe, err = v.listener.Accept(t.Context())
	require.NoError(t, err)
	exchangePayload(t, a)
	a.closeOrderly(t)
	v.requireIdle(t)
	v.requireServing(t)
}

// TestIDsDiffer checks that the ids of concurrent handshakes all differ and do not count up.
func TestIDsDiffer(t *testing.T) {
	v := newVictim(t)
	seen := map[uint64]bool{}
	for range 8 {
		first, answer := v.sendOffer(t, goodBrochure())
		ids := append(answer.ChannelRegistrationIDs[basic.Name], answer.TransportRegistrationIDs[wire.ReplyConnection])
		for _, id := range ids {
			for other := range seen {
				require.NotEqual(t, id, other)
				require.NotEqual(t, id, other+1, "ids must not count up")
			}
			seen[id] = true
		}
		first.Close()
	}
}

// TestIDUsedTwice checks that only one of two connections with the same id is accepted, that all
// later ones are rejected, and that the pipe works.
func TestIDUsedTwice(t *testing.T) {
	v := newVictim(t)
	first, answer := v.sendOffer(t, goodBrochure())
	reply := answer.TransportRegistrationIDs[wire.ReplyConnection]
	channel := answer.ChannelRegistrationIDs[basic.Name][0]
	duplicates := []*raw{v.dialRawWith(t, request(reply)), v.dialRawWith(t, request(reply))}
	var lost []record
	waitFor(t, func() bool {
		lost = v.log.find(func(rec record) bool { return rec.peer == duplicates[0].local() || rec.peer == duplicates[1].local() })
		return len(lost) > 0
	}, "one of them is rejected")
	require.Len(t, lost, 1)
	require.ErrorIs(t, lost[0].err, pipe.ErrProtocol)
	if lost[0].peer == duplicates[0].local() {
		slices.Reverse(duplicates)
	}
	duplicates[1].waitClosed()
	a := &attack{desc: first, reply: duplicates[0]}
	requireIDRejected(t, v, reply)

	a.basic = v.dialRawWith(t, request(channel))
	var err error
	a.pipe, err = v.listener.Accept(t.Context())
	require.NoError(t, err)
	for _, id := range []uint64{reply, channel} {
		requireIDRejected(t, v, id)
	}
	exchangePayload(t, a)
	a.closeOrderly(t)
	v.requireIdle(t)
	v.requireServing(t)
}

// closeOrderly closes all connections of the attacker and requires that the victim's Close of the
// pipe succeeds.
func (a *attack) closeOrderly(t testing.TB) {
	t.Helper()
	a.closeConns()
	require.NoError(t, a.pipe.Close())
}
