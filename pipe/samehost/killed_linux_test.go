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
	onAllWays(t, func(t *testing.T, s *survivor, listens bool) { s.bury(t, atSystemCall, listens, 3) })
}

// onAllWays runs f with a survivor for each way, in the constellations of dialects
// and of ends that may die.
func onAllWays(t *testing.T, f func(t *testing.T, s *survivor, listens bool)) {
	for i, w := range ways {
		for _, c := range constellations(i) {
			t.Run(w.name+"/"+c.dialect+"/"+c.child(), func(t *testing.T) {
				w.needs(t)
				s := newSurvivor(t, w, c.dialect)
				if !c.listens {
					s.accept(t)
				}
				f(t, s, c.listens)
			})
		}
	}
}

// bury lets one child after another die, each at another point of its life: a few of
// them, or as many as the environment says. Where it says how many, none may take a
// second to be forgotten; other runs may share the machine with whatever there is.
func (s *survivor) bury(t *testing.T, start executioner, listens bool, few int) {
	t.Helper()
	life := s.live(t, start, listens)
	var dead []fate
	points := chosen(t, life.points, few)
	for _, n := range points {
		f := s.meet(t, start, listens, n)
		f.require(t, n)
		if f.killed {
			dead = append(dead, f)
		} else {
			require.NoError(t, f.err, "point %d: not every life has as many", n)
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
		require.Less(t, slowest.freed, time.Second)
		require.Equal(t, life.lanes, striping > 0, "deaths on lanes")
	}
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
