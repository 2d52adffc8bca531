package roster

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
)

// waitsAndDies claims what a member claims, and dies when it would wait.
func waitsAndDies(t *testing.T, s store.Store, m Member, world int) {
	t.Helper()
	_, err := JoinStatic(t.Context(), dies{s, new(bool)}, "group", m, world)
	require.ErrorIs(t, err, errDied)
}

// dies is a store whose user dies when it waits.
type dies struct {
	store.Store
	dead *bool
}

func (d dies) Wait(context.Context, ...string) error {
	*d.dead = true
	return errDied
}

func (d dies) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	if *d.dead {
		return nil, errDied
	}
	return d.Store.CompareAndSet(ctx, key, expected, desired)
}

// clearRank is what one who withdraws does first, and one who dies then does only.
func clearRank(t *testing.T, s store.Store, m Member) {
	t.Helper()
	shelf := newShelf(s, "group")
	key := shelf.rankKey(1, m.Rank)
	value, err := shelf.get(t.Context(), key)
	require.NoError(t, err)
	_, err = shelf.swap(t.Context(), key, value, nil)
	require.NoError(t, err)
}

// A name that a dead member had claimed goes to whoever wants it, once its rank is
// free.
func TestNameOfOneWhoWithdrewByHalf(t *testing.T) {
	backends(t, func(t *testing.T, open opener) {
		dead := worker("a", 0)
		waitsAndDies(t, open(), dead, 2)
		clearRank(t, open(), dead)
		b, a := worker("b", 0), worker("a", 1)
		for _, r := range formed(t, open, b, a) {
			wantMembers(t, r, b, a)
		}
	})
}

// hesitant is a store whose user waits before it says that the group is complete.
type hesitant struct {
	store.Store
	list    string
	resumes chan struct{}
}

func (h hesitant) Set(ctx context.Context, key string, value []byte) error {
	if key == h.list {
		<-h.resumes
	}
	return h.Store.Set(ctx, key, value)
}

// A member that dies while it withdraws may be in the group all the same: then the
// one that takes its rank meanwhile is not.
func TestSuccessorOfOneWhoWithdrewByHalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, resumes := onMemory(t)(), make(chan struct{})
		slow := func(m Member) store.Store {
			return hesitant{s, newShelf(s, "group").listKey(1, m.Incarnation), resumes}
		}
		dead, a, b := worker("a", 0), worker("a", 0), worker("b", 1)
		waitsAndDies(t, s, dead, 2)
		first := joining(t.Context(), slow(b), b, 2)
		synctest.Wait() // it has seen the dead one, and both are there
		clearRank(t, s, dead)
		second := joining(t.Context(), slow(a), a, 2)
		synctest.Wait()       // it has seen the other one, and both are there
		resumes <- struct{}{} // to the first, which was there before
		synctest.Wait()
		resumes <- struct{}{}
		r := mustJoin(t, first)
		got := patience.Finish(t, second)
		wantMembers(t, r, dead, b)
		require.ErrorIs(t, got.err, ErrRejoin)
		_, err := s.Get(t.Context(), newShelf(s, "group").listKey(1, a.Incarnation))
		require.ErrorIs(t, err, store.ErrNotFound, "a list that does not count")
	})
}

// One member tries again while another one who was told looks around.
func TestOtherTriesAgainBeforeEachCall(t *testing.T) {
	interposed(t, func(t *testing.T, s, hooked store.Store, meanwhile func(func())) {
		one, two := joining(t.Context(), s, worker("X", 0), 2), joining(t.Context(), s, worker("X", 1), 2)
		failsJoin(t, one, ErrDuplicateName)
		failsJoin(t, two, ErrDuplicateName)
		other := make(chan joined, 1)
		a, b := worker("a", 0), worker("b", 1)
		meanwhile(func() { r, err := JoinStatic(within(t), s, "group", a, 2); other <- joined{r, err} })
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		r, err := JoinStatic(ctx, hooked, "group", b, 2)
		if err != nil { // the other came late, or not
			require.ErrorIs(t, err, context.DeadlineExceeded)
			return
		}
		wantMembers(t, r, a, b)
		wantMembers(t, mustJoin(t, other), a, b)
	})
}

// Whoever has waited in a generation that failed hears of it, also where the others
// are in the next one already.
func TestFailureAndNextAttemptBeforeEachCall(t *testing.T) {
	interposed(t, func(t *testing.T, s, hooked store.Store, meanwhile func(func())) {
		slow, begun := worker("w", 2), time.Now()
		entered, inTime := false, false
		meanwhile(func() {
			inTime = time.Since(begun) < 5*time.Second
			value, err := newShelf(s, "group").get(t.Context(), newShelf(s, "group").rankKey(1, 2))
			entered = value != nil && err == nil
			one, two := joining(t.Context(), s, worker("X", 0), 3), joining(t.Context(), s, worker("X", 1), 3)
			failsJoin(t, one, ErrDuplicateName)
			failsJoin(t, two, ErrDuplicateName)
			_, _ = JoinStatic(within(t), s, "group", worker("a", 0), 3)
		})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := JoinStatic(ctx, hooked, "group", slow, 3)
		if entered && inTime {
			require.ErrorIs(t, err, ErrDuplicateName)
		} else {
			require.True(t, isAny(err, ErrDuplicateName, context.DeadlineExceeded), "%v", err)
		}
	})
}

// A member that dies while it leaves has left, or has not.
func TestDeathInLeaveBeforeEachCall(t *testing.T) {
	for n := 1; ; n++ {
		died := false
		synctest.Test(t, func(t *testing.T) {
			s, calls, alive := onMemory(t)(), 0, true
			mortal := stage{s, func() error {
				if calls++; alive && calls >= n {
					died = true
					return errDied
				}
				return nil
			}}
			stores := []store.Store{mortal, s}
			alive = false
			old := formed(t, func() store.Store { s := stores[0]; stores = stores[1:]; return s }, worker("a", 0), worker("b", 1))
			require.NoError(t, old[1].Leave(t.Context()))
			calls, alive = 0, true
			failed := old[0].Leave(t.Context())
			alive = false

			b := joining(within(t), s, worker("b", 1), 2)
			_, err := JoinStatic(within(t), s, "group", worker("a", 0), 2)
			if failed != nil {
				require.ErrorIs(t, err, ErrRejoin)
				require.NoError(t, old[0].Leave(t.Context()), "it was not dead")
				require.Error(t, (<-b).err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, uint64(2), mustJoin(t, b).Generation())
			old[0].left = false // as if it had not heard that it succeeded
			require.NoError(t, old[0].Leave(t.Context()))
			_, err = s.Get(t.Context(), old[0].visit.goneKey(2, 0))
			require.ErrorIs(t, err, store.ErrNotFound, "that is not its generation")
		})
		if !died || t.Failed() {
			require.Greater(t, n, 4)
			return
		}
	}
}

// Nobody waits for a clock where somebody else decides.
func TestAllHearAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open, begun := onMemory(t), time.Now()
		waiting := joining(t.Context(), open(), worker("a", 0), 3)
		other := joining(t.Context(), open(), worker("b", 1), 3)
		synctest.Wait()
		failsJoin(t, joining(t.Context(), open(), worker("b", 2), 3), ErrDuplicateName)
		failsJoin(t, waiting, ErrDuplicateName)
		failsJoin(t, other, ErrDuplicateName)
		require.Zero(t, time.Since(begun))

		waiting = joining(t.Context(), open(), worker("a", 0), 2)
		synctest.Wait()
		second := mustJoin(t, joining(t.Context(), open(), worker("b", 1), 2))
		require.NoError(t, mustJoin(t, waiting).Leave(t.Context()))
		require.Zero(t, time.Since(begun))

		waiting = joining(t.Context(), open(), worker("a", 0), 1)
		synctest.Wait()
		require.NoError(t, second.Leave(t.Context()))
		mustJoin(t, waiting)
		require.Zero(t, time.Since(begun))
	})
}

// A worker that could not withdraw comes again: while the others wait with another
// address, and to a complete group only as the others know it.
func TestSameIncarnationAgain(t *testing.T) {
	for _, late := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := onMemory(t)()
			o := newOutage(s)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			a, b := worker("a", 0), worker("b", 1)
			waiting := joining(ctx, o, a, 2)
			synctest.Wait()
			o.end()
			failsJoin(t, waiting, context.DeadlineExceeded)
			moved := a
			moved.URLs = []string{"uv://elsewhere"}
			if late {
				mustJoin(t, joining(t.Context(), s, b, 2))
				require.ErrorContains(t, failsJoin(t, joining(t.Context(), s, moved, 2), ErrRejoin), "other things about itself")
				wantMembers(t, mustJoin(t, joining(t.Context(), s, a, 2)), a, b)
				return
			}
			waiting = joining(t.Context(), s, moved, 2)
			synctest.Wait()
			wantMembers(t, mustJoin(t, joining(t.Context(), s, b, 2)), moved, b)
			wantMembers(t, mustJoin(t, waiting), moved, b)
		})
	}
}
