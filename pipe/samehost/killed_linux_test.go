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
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// pointsVar is the environment variable with the number of points at which a child is killed on
// each route, or "all".
const pointsVar = "SAMEHOST_TEST_POINTS"

func connectRefused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET)
}

// TestKilledAtSystemCalls checks that if a process is killed before a system call, all calls of the
// other end fail and all resources of the other end are released.
func TestKilledAtSystemCalls(t *testing.T) {
	skipWithoutTracing(t)
	onAllRoutes(t, atSystemCall, 3)
}

// onAllRoutes runs killAtPoints as a subtest on each route, in each dialect and with the child
// listening and dialling; few is the number of points at which children are killed in each. It logs
// the number of points and the slowest cleanup.
func onAllRoutes(t *testing.T, start starter, few int) {
	var all killStats
	for i, w := range routes {
		for _, c := range variants(i) {
			if !slices.Contains(w.dialects(), c.dialect) {
				continue
			}
			t.Run(w.name+"/"+string(c.dialect)+"/"+c.child(), func(t *testing.T) {
				w.skipUnlessViable(t)
				s := newSurvivor(t, w, c.dialect)
				if !c.listens {
					s.accept(t)
				}
				all.add(s.killAtPoints(t, start, c.listens, few))
			})
		}
	}
	t.Logf("all routes: %d points counted, %d chosen, killed at %d of these; the slowest was cleaned up after %v",
		all.points, all.chosen, all.killed, all.slowest.Round(10*time.Microsecond))
}

// killStats counts points: those that exist, those at which a child was to be killed, and those at
// which it was. slowest is the longest time until all resources were released.
type killStats struct {
	points, chosen, killed int
	slowest                time.Duration
}

func (l *killStats) add(more killStats) {
	l.points += more.points
	l.chosen += more.chosen
	l.killed += more.killed
	l.slowest = max(l.slowest, more.slowest)
}

// maxCleanup bounds the time from the death of a child until all calls have failed and all
// resources are released. Everything is slower under the race detector.
var maxCleanup = race.Pick(time.Second, 5*time.Second)

// attempts is how often maxCleanup must be exceeded at one point to be a failure. Load of the
// machine may exceed it once; a wait within the library exceeds it each time.
const attempts = 3

// killAt starts a child that is killed at point n, and requires that this process gets the right
// errors. It repeats this while the cleanup takes too long, and returns the result with the fastest
// cleanup. If the child has fewer points and is not killed, it must succeed.
func (s *survivor) killAt(t *testing.T, start starter, listens bool, n int) (best killResult) {
	t.Helper()
	for i := range attempts {
		f := s.connect(t, start, listens, n)
		f.require(t, n)
		if !f.killed {
			require.NoError(t, f.err, "point %d: not every run has as many", n)
		}
		if i == 0 || f.killed && f.freed < best.freed {
			best = f
		}
		if !best.killed || best.freed < maxCleanup {
			break
		}
		t.Logf("point %d, %s: cleaned up after %v", n, f.where, f.freed)
	}
	return best
}

// killAtPoints runs a child to its end to count the points at which it can be killed. It then
// starts one child after the other and kills each at another point. The number of points is the
// argument few, or the value of the environment variable pointsVar. It requires that all resources
// of this process are released in time, logs the results and returns their sums.
func (s *survivor) killAtPoints(t *testing.T, start starter, listens bool, few int) killStats {
	t.Helper()
	whole := s.runToEnd(t, start, listens)
	var dead []killResult
	points := choosePoints(t, whole.points, few)
	for _, n := range points {
		if f := s.killAt(t, start, listens, n); f.killed {
			require.Less(t, f.freed, maxCleanup, "point %d, %s", n, f.where)
			dead = append(dead, f)
		}
	}
	require.NotEmpty(t, dead)
	slices.SortFunc(dead, func(a, b killResult) int { return cmp.Compare(a.freed, b.freed) })
	half, slowest := dead[len(dead)/2].freed, dead[len(dead)-1]
	unnoticed, striping := count(dead, killResult.unnoticed), count(dead, killResult.striping)
	t.Logf("%s, %s, %s: %d points; killed at %d of %d chosen, %d before it connected, %d on lanes; cleaned up after %v in the median, after %v the slowest, at point %d, %s",
		s.route.name, s.dialect, map[bool]string{false: "the client", true: "the server"}[listens],
		whole.points, len(dead), len(points), unnoticed, striping,
		half.Round(10*time.Microsecond), slowest.freed.Round(10*time.Microsecond), slowest.n, slowest.where)
	if os.Getenv(pointsVar) != "" {
		require.Equal(t, whole.lanes, striping > 0, "killed while lanes carry tensors")
	}
	return killStats{points: whole.points, chosen: len(points), killed: len(dead), slowest: slowest.freed}
}

func count(dead []killResult, such func(killResult) bool) (n int) {
	for _, f := range dead {
		if such(f) {
			n++
		}
	}
	return n
}

// runToEnd records the open resources, runs a child that is not killed, and requires that it
// succeeds and that its pipe ends with ErrPeerClosed. The result has the number of points at which
// the child can be killed.
func (s *survivor) runToEnd(t *testing.T, start starter, listens bool) killResult {
	t.Helper()
	s.recordBaseline()
	f := s.connect(t, start, listens, 0)
	require.NoError(t, f.err)
	require.Len(t, f.errs, 1)
	require.ErrorIs(t, f.errs[0], pipe.ErrPeerClosed)
	require.Positive(t, f.points)
	require.Equal(t, s.route.channel == mpt.UVName, f.lanes, "lanes carry tensors")
	return f
}

// choosePoints returns some of the numbers from 1 to points, at equal distances. Their count is the
// argument few or, if the environment variable pointsVar is set, its value; "all" stands for all
// numbers.
func choosePoints(t *testing.T, points, few int) (all []int) {
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
