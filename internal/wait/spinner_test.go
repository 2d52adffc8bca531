package wait

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// stage is a spinner in a room of its own, with a clock that goes forward by
// one microsecond for each look.
type stage struct {
	*spinner
	time   time.Duration
	yields int
	looks  int
}

func newStage(bound time.Duration) *stage {
	s := &stage{}
	s.spinner = &spinner{
		bound: bound,
		seat:  new(room).enter(),
		now:   func() time.Duration { return s.time },
		yield: func() { s.yields++ },
	}
	return s
}

// settle gives the seat the run that it needs.
func (s *stage) settle() *stage {
	for range quiet + 1 {
		s.seat.came()
	}
	return s
}

// waits plays one wait, in which the n-th look finds something; 0 is none.
func (s *stage) waits(n int) (found bool, looks int) {
	s.looks, s.yields = 0, 0
	found = s.find(func() bool {
		s.looks++
		s.time += time.Microsecond
		return s.looks == n
	})
	if found {
		s.seat.came()
	}
	return found, s.looks
}

func TestSpinEndsWithWhatItFinds(t *testing.T) {
	s := newStage(100 * time.Microsecond).settle()
	for range 1000 {
		found, looks := s.waits(7)
		require.True(t, found)
		require.Equal(t, 7, looks)
		require.Equal(t, 7, s.yields, "others run before each look")
	}
}

func TestSpinIsBounded(t *testing.T) {
	for _, bound := range []int{1, 10, 100} {
		s := newStage(time.Duration(bound) * time.Microsecond).settle()
		found, looks := s.waits(0)
		require.False(t, found)
		require.Equal(t, bound, looks)
	}
}

func TestSpinningOff(t *testing.T) {
	for _, bound := range []time.Duration{0, -1} {
		s := newStage(bound).settle()
		found, looks := s.waits(1)
		require.False(t, found)
		require.Zero(t, looks)
		require.Zero(t, s.yields)
	}
}

// Where nothing is found, looking becomes rare: the price of 10,000 waits in
// vain is that of few spins.
func TestSpinsInVainBecomeRare(t *testing.T) {
	s := newStage(100 * time.Microsecond).settle()
	spins := 0
	for range 10_000 {
		_, looks := s.waits(0)
		if looks > 0 {
			spins++
		}
	}
	require.LessOrEqual(t, spins, 10+10_000/longestPause)
	require.Greater(t, spins, 10, "it goes on trying")
}

func TestPauses(t *testing.T) {
	s := newStage(10 * time.Microsecond).settle()
	for _, pause := range []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 256} {
		_, looks := s.waits(0)
		require.Equal(t, 10, looks)
		for range pause {
			found, looks := s.waits(0)
			require.False(t, found)
			require.Zero(t, looks)
			require.Zero(t, s.yields)
		}
	}
	found, looks := s.waits(5)
	require.True(t, found)
	require.Equal(t, 5, looks)

	s.waits(0)
	_, looks = s.waits(0)
	require.Zero(t, looks, "one wait without a spin")
	_, looks = s.waits(0)
	require.Equal(t, 10, looks, "the success was not forgotten")
}

func TestOnlyTheOneThatIsBusySpins(t *testing.T) {
	one := newStage(10 * time.Microsecond)
	two := newStage(10 * time.Microsecond)
	two.seat = one.seat.room.enter()
	spins := func(s *stage) bool { _, looks := s.waits(0); s.shy = shyness{}; return looks > 0 }

	require.False(t, spins(one), "nothing came yet")
	one.settle()
	require.True(t, spins(one))
	require.False(t, spins(two))

	two.seat.came()
	require.False(t, spins(one))
	require.False(t, spins(two))
	one.seat.came()
	require.False(t, spins(one), "two are busy")

	two.settle()
	require.True(t, spins(two))
	require.False(t, spins(one))
}

// A spin ends when something comes for another.
func TestSpinMakesWay(t *testing.T) {
	s := newStage(100 * time.Microsecond).settle()
	other := s.seat.room.enter()
	looks := 0
	require.False(t, s.find(func() bool {
		looks++
		if looks == 3 {
			other.came()
		}
		return false
	}))
	require.Equal(t, 3, looks)
	require.Zero(t, s.shy.pause, "the spin was not in vain")
}

// What is due is looked for though something came for others; by one at a time, and
// not for ever.
func TestSpinForWhatIsDue(t *testing.T) {
	one, two := newStage(10*time.Microsecond), newStage(10*time.Microsecond)
	two.seat = one.seat.room.enter()
	for _, s := range []*stage{one, two} {
		s.seat.came()
	}
	looks := 0
	due := func(s *stage, n int) bool {
		looks = 0
		return s.findDue(func() bool {
			looks++
			s.time += time.Microsecond
			if looks == 1 && s == one {
				require.False(t, two.findDue(func() bool { panic("it must not look") }))
			}
			two.seat.came() // does not end the spin
			return looks == n
		})
	}
	require.True(t, due(one, 5))
	require.Equal(t, 5, looks)
	require.True(t, due(two, 7))
	require.Equal(t, 7, looks)
	require.False(t, due(two, 100), "it ends")
	require.Equal(t, 10, looks)
	require.False(t, due(two, 1), "and becomes rare")
	require.Zero(t, looks)
}
