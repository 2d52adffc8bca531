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

// A connection with an id that nobody waits for is closed, and that is all.
func TestUnknownID(t *testing.T) {
	v := newVictim(t)
	for _, id := range []uint64{0, 1, 2, 41, 1<<63 - 1, 1 << 63, 1<<64 - 1} {
		t.Run(fmt.Sprint(id), func(t *testing.T) {
			requireTurnedAway(t, v, id)
			v.unharmed(t)
		})
	}
	v.quiet(t)
	v.alive(t)
}

func requireTurnedAway(t testing.TB, v *victim, id uint64) {
	t.Helper()
	r := v.visitWith(t, request(id))
	v.log.requireRefused(t, r.local(), pipe.ErrProtocol)
	r.ended()
}

// While a client's connections are awaited, strangers try ids: those that
// upstream would have given out, and neighbours of the ones that were.
func TestGuessedID(t *testing.T) {
	v := newVictim(t)
	first, answer := v.introduce(t, goodBrochure())
	reply := answer.TransportRegistrationIDs[wire.ReplyConnection]
	channel := answer.ChannelRegistrationIDs[basic.Name][0]
	guesses := []uint64{0, 1, 2, 3, 4, reply - 1, reply + 1, channel - 1, channel + 1, reply ^ channel}
	for range 10 {
		guesses = append(guesses, rand.Uint64())
	}
	for _, id := range guesses {
		requireTurnedAway(t, v, id)
	}
	a := &attack{desc: first, basic: v.visitWith(t, request(channel)), reply: v.visitWith(t, request(reply))}
	var err error
	a.pipe, err = v.listener.Accept(t.Context())
	require.NoError(t, err)
	exchangePayload(t, a)
	a.finish(t)
	v.quiet(t)
	v.alive(t)
}

// Ids of two clients that handshake at the same time are unlike each other.
func TestIDsDiffer(t *testing.T) {
	v := newVictim(t)
	seen := map[uint64]bool{}
	for range 8 {
		first, answer := v.introduce(t, goodBrochure())
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

// Of two connections with the same id one has it, and the other is turned away,
// as are all that come later.
func TestIDUsedTwice(t *testing.T) {
	v := newVictim(t)
	first, answer := v.introduce(t, goodBrochure())
	reply := answer.TransportRegistrationIDs[wire.ReplyConnection]
	channel := answer.ChannelRegistrationIDs[basic.Name][0]
	rivals := []*raw{v.visitWith(t, request(reply)), v.visitWith(t, request(reply))}
	var lost []record
	await(t, func() bool {
		lost = v.log.find(func(rec record) bool { return rec.peer == rivals[0].local() || rec.peer == rivals[1].local() })
		return len(lost) > 0
	}, "one of them is refused")
	require.Len(t, lost, 1)
	require.ErrorIs(t, lost[0].err, pipe.ErrProtocol)
	if lost[0].peer == rivals[0].local() {
		slices.Reverse(rivals)
	}
	rivals[1].ended()
	a := &attack{desc: first, reply: rivals[0]}
	requireTurnedAway(t, v, reply)

	a.basic = v.visitWith(t, request(channel))
	var err error
	a.pipe, err = v.listener.Accept(t.Context())
	require.NoError(t, err)
	for _, id := range []uint64{reply, channel} {
		requireTurnedAway(t, v, id)
	}
	exchangePayload(t, a)
	a.finish(t)
	v.quiet(t)
	v.alive(t)
}

// finish ends an attack in peace.
func (a *attack) finish(t testing.TB) {
	t.Helper()
	a.hangUp()
	require.NoError(t, a.pipe.Close())
}
