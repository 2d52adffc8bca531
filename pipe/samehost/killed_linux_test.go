package samehost_test

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/internal/race"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// pointsVar in the environment is at how many points of each way a child is to
// die, "all" being all.
const pointsVar = "SAMEHOST_TEST_POINTS"

func refusedToConnect(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET)
}

// A process is killed before a system call: the other end has an error, and
// nothing left of it.
func TestKilledAtSystemCalls(t *testing.T) {
	needsTracing(t)
	onAllWays(t, atSystemCall, 3)
}

// onAllWays lets children die on each way, in the constellations of dialects and of
// ends that may die, and says at how many points in all.
func onAllWays(t *testing.T, start executioner, few int) {
	var all toll
	for i, w := range ways {
		for _, c := range constellations(i) {
			if !slices.Contains(w.dialects(), c.dialect) {
				continue
			}
			t.Run(w.name+"/"+c.dialect+"/"+c.child(), func(t *testing.T) {
				w.needs(t)
				s := newSurvivor(t, w, c.dialect)
				if !c.listens {
					s.accept(t)
				}
				all.add(s.bury(t, start, c.listens, few))
			})
		}
	}
	t.Logf("all ways: %d points counted, %d chosen, killed at %d of these; the slowest was gone after %v",
		all.points, all.chosen, all.killed, all.slowest.Round(10*time.Microsecond))
}

// toll is how many points there are, at how many a child was to die, at how many it
// did, and how long it took at most until nothing was left of one.
type toll struct {
	points, chosen, killed int
	slowest                time.Duration
}

func (l *toll) add(more toll) {
	l.points += more.points
	l.chosen += more.chosen
	l.killed += more.killed
	l.slowest = max(l.slowest, more.slowest)
}

// forgotten is how long it may take until those who wait for a child that died have
// their errors, and nothing is left of it. Under the race detector all takes longer.
var forgotten = race.Pick(time.Second, 5*time.Second)

// attempts is at how many deaths at one point that may be exceeded before it counts:
// other programs share the machine with this one, and what the library itself waits
// for it waits for each time.
const attempts = 3

// die has a child die at a point, again if it took too long.
func (s *survivor) die(t *testing.T, start executioner, listens bool, n int) (best fate) {
	t.Helper()
	for i := range attempts {
		f := s.meet(t, start, listens, n)
		f.require(t, n)
		if !f.killed {
			require.NoError(t, f.err, "point %d: not every life has as many", n)
		}
		if i == 0 || f.killed && f.freed < best.freed {
			best = f
		}
		if !best.killed || best.freed < forgotten {
			break
		}
		t.Logf("point %d, %s: gone after %v", n, f.where, f.freed)
	}
	return best
}

// bury lets one child after another die, each at another point of its life: a few of
// them, or as many as the environment says.
func (s *survivor) bury(t *testing.T, start executioner, listens bool, few int) toll {
	t.Helper()
	life := s.live(t, start, listens)
	var dead []fate
	points := chosen(t, life.points, few)
	for _, n := range points {
		if f := s.die(t, start, listens, n); f.killed {
			require.Less(t, f.freed, forgotten, "point %d, %s", n, f.where)
			dead = append(dead, f)
		}
	}
	require.NotEmpty(t, dead)
	slices.SortFunc(dead, func(a, b fate) int { return cmp.Compare(a.freed, b.freed) })
	half, slowest := dead[len(dead)/2].freed, dead[len(dead)-1]
	alone, striping := count(dead, fate.alone), count(dead, fate.striping)
	t.Logf("%s, %s, %s: %d points; killed at %d of %d chosen, %d before it met anybody, %d on lanes; gone after %v in the median, after %v the slowest, at point %d, %s",
		s.way.name, s.dialect, map[bool]string{false: "the dialling end", true: "the listening end"}[listens],
		life.points, len(dead), len(points), alone, striping,
		half.Round(10*time.Microsecond), slowest.freed.Round(10*time.Microsecond), slowest.n, slowest.where)
	if os.Getenv(pointsVar) != "" {
		require.Equal(t, life.lanes, striping > 0, "deaths on lanes")
	}
	return toll{points: life.points, chosen: len(points), killed: len(dead), slowest: slowest.freed}
}

func count(dead []fate, such func(fate) bool) (n int) {
	for _, f := range dead {
		if such(f) {
			n++
		}
	}
	return n
}

// live is the life of a child that does not die.
func (s *survivor) live(t *testing.T, start executioner, listens bool) fate {
	t.Helper()
	s.settleIn()
	f := s.meet(t, start, listens, 0)
	require.NoError(t, f.err)
	require.Len(t, f.errs, 1)
	require.ErrorIs(t, f.errs[0], pipe.ErrPeerClosed)
	require.Positive(t, f.points)
	require.Equal(t, s.way.channel == mpt.UVName, f.lanes, "lanes carry")
	return f
}

// chosen are points from the first to the last, at equal distances.
func chosen(t *testing.T, points, few int) (all []int) {
	t.Helper()
	switch v := os.Getenv(pointsVar); v {
	case "":
	case "all":
		few = points
	default:
		var err error
		few, err = strconv.Atoi(v)
		require.NoError(t, err)
	}
	few = min(few, points)
	for i := range few {
		all = append(all, 1+i*points/few)
	}
	return all
}
