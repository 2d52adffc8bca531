package roster

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// joinAndDie has m join a static group of world members on the store s, and fails every call to s
// once m begins to wait for other members, as if m had crashed then. Its claims stay on the store.
func joinAndDie(t *testing.T, s store.Store, m Member, world int) {
	t.Helper()
	_, err := JoinStatic(t.Context(), dyingStore{s, new(bool)}, "group", m, world)
	require.ErrorIs(t, err, errCrashed)
}

// dyingStore is the store of a member that crashes when it waits.
type dyingStore struct {
	store.Store
	dead *bool
}

func (d dyingStore) Wait(context.Context, ...string) error {
	*d.dead = true
	return errCrashed
}

func (d dyingStore) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	if *d.dead {
		return nil, errCrashed
	}
	return d.Store.CompareAndSet(ctx, key, expected, desired)
}

// deleteRankClaim deletes the claim of the rank of m in the first generation, and leaves the claim
// of its name, as if m had crashed after the first step of withdrawing.
func deleteRankClaim(t *testing.T, s store.Store, m Member) {
	t.Helper()
	ks := newKeySpace(s, "group")
	key := ks.rankKey(1, m.Rank)
	value, err := ks.get(t.Context(), key)
	require.NoError(t, err)
	_, err = ks.compareAndSwap(t.Context(), key, value, nil)
	require.NoError(t, err)
}

// TestNameClaimWithoutRankClaim tests that a member can join under a name that a crashed member has
// claimed, if the crashed member's claim of its rank is deleted.
func TestNameClaimWithoutRankClaim(t *testing.T) {
	forEachStore(t, func(t *testing.T, open openFunc) {
		dead := worker("a", 0)
		joinAndDie(t, open(), dead, 2)
		deleteRankClaim(t, open(), dead)
		b, a := worker("b", 0), worker("a", 1)
		for _, r := range formGroup(t, open, b, a) {
			requireMembers(t, r, b, a)
		}
	})
}

// blockingStore blocks its user before it writes the list of a complete group.
type blockingStore struct {
	store.Store
	list   string
	resume chan struct{}
}

func (h blockingStore) Set(ctx context.Context, key string, value []byte) error {
	if key == h.list {
		<-h.resume
	}
	return h.Store.Set(ctx, key, value)
}

// TestCompleteGroupWithWithdrawnMember tests a member that crashes while it withdraws, after
// another member has read its claim. The group is then complete with the crashed member, and the
// member that has claimed the same rank since fails with ErrRejoin and leaves no member list on the
// store.
func TestCompleteGroupWithWithdrawnMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, resume := memoryStore(t)(), make(chan struct{})
		slow := func(m Member) store.Store {
			return blockingStore{s, newKeySpace(s, "group").listKey(1, m.Incarnation), resume}
		}
		dead, a, b := worker("a", 0), worker("a", 0), worker("b", 1)
		joinAndDie(t, s, dead, 2)
		first := startJoin(t.Context(), slow(b), b, 2)
		synctest.Wait() // it has read both claims, with that of the dead member
		deleteRankClaim(t, s, dead)
		second := startJoin(t.Context(), slow(a), a, 2)
		synctest.Wait()      // it has read both claims, with that of the first
		resume <- struct{}{} // resumes the first
		synctest.Wait()
		resume <- struct{}{}
		r := mustJoin(t, first)
		got := testwait.Finish(t, second)
		requireMembers(t, r, dead, b)
		require.ErrorIs(t, got.err, ErrRejoin)
		_, err := s.Get(t.Context(), newKeySpace(s, "group").listKey(1, a.Incarnation))
		require.ErrorIs(t, err, store.ErrNotFound, "a list that does not count")
	})
}

// TestConcurrentRetryBeforeEachCall tests two members that join again after a failed generation,
// where one joins between any two calls that the other makes to the store: both get the same group,
// or the join times out.
func TestConcurrentRetryBeforeEachCall(t *testing.T) {
	atEachCall(t, func(t *testing.T, s, hooked store.Store, meanwhile func(func())) {
		one, two := startJoin(t.Context(), s, worker("X", 0), 2), startJoin(t.Context(), s, worker("X", 1), 2)
		requireJoinError(t, one, ErrDuplicateName)
		requireJoinError(t, two, ErrDuplicateName)
		other := make(chan joined, 1)
		a, b := worker("a", 0), worker("b", 1)
		meanwhile(func() { r, err := JoinStatic(shortContext(t), s, "group", a, 2); other <- joined{r, err} })
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		r, err := JoinStatic(ctx, hooked, "group", b, 2)
		if err != nil { // the other joined too late, or not at all
			require.ErrorIs(t, err, context.DeadlineExceeded)
			return
		}
		requireMembers(t, r, a, b)
		requireMembers(t, mustJoin(t, other), a, b)
	})
}

// TestFailureAndNextAttemptBeforeEachCall tests that a member that waits in a generation that fails
// gets the error, even if the others have begun the next generation before any of its calls to the
// store.
func TestFailureAndNextAttemptBeforeEachCall(t *testing.T) {
	atEachCall(t, func(t *testing.T, s, hooked store.Store, meanwhile func(func())) {
		slow, begun := worker("w", 2), time.Now()
		entered, inTime := false, false
		meanwhile(func() {
			inTime = time.Since(begun) < 5*time.Second
			value, err := newKeySpace(s, "group").get(t.Context(), newKeySpace(s, "group").rankKey(1, 2))
			entered = value != nil && err == nil
			one, two := startJoin(t.Context(), s, worker("X", 0), 3), startJoin(t.Context(), s, worker("X", 1), 3)
			requireJoinError(t, one, ErrDuplicateName)
			requireJoinError(t, two, ErrDuplicateName)
			_, _ = JoinStatic(shortContext(t), s, "group", worker("a", 0), 3)
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

// TestCrashInLeaveBeforeEachCall tests a member that crashes before any of the calls that Leave
// makes to the store. If Leave has failed, its successor gets ErrRejoin; otherwise the next group
// forms, and a repeated Leave does not affect that group.
func TestCrashInLeaveBeforeEachCall(t *testing.T) {
	for n := 1; ; n++ {
		died := false
		synctest.Test(t, func(t *testing.T) {
			s, calls, alive := memoryStore(t)(), 0, true
			failing := hookedStore{s, func() error {
				if calls++; alive && calls >= n {
					died = true
					return errCrashed
				}
				return nil
			}}
			stores := []store.Store{failing, s}
			alive = false
			old := formGroup(t, func() store.Store { s := stores[0]; stores = stores[1:]; return s }, worker("a", 0), worker("b", 1))
			require.NoError(t, old[1].Leave(t.Context()))
			calls, alive = 0, true
			failed := old[0].Leave(t.Context())
			alive = false

			b := startJoin(shortContext(t), s, worker("b", 1), 2)
			_, err := JoinStatic(shortContext(t), s, "group", worker("a", 0), 2)
			if failed != nil {
				require.ErrorIs(t, err, ErrRejoin)
				require.NoError(t, old[0].Leave(t.Context()), "it was not dead")
				require.Error(t, (<-b).err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, uint64(2), mustJoin(t, b).Generation())
			old[0].left = false // as if the reply had been lost
			require.NoError(t, old[0].Leave(t.Context()))
			_, err = s.Get(t.Context(), old[0].groupAccess.leftKey(2, 0))
			require.ErrorIs(t, err, store.ErrNotFound, "that is not its generation")
		})
		if !died || t.Failed() {
			require.Greater(t, n, 4)
			return
		}
	}
}

// TestOutcomeWakesWaitingMembers tests that members that wait learn at once, and not at the next
// interval, that the group has failed, is complete, or has ended.
func TestOutcomeWakesWaitingMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open, begun := memoryStore(t), time.Now()
		waiting := startJoin(t.Context(), open(), worker("a", 0), 3)
		other := startJoin(t.Context(), open(), worker("b", 1), 3)
		synctest.Wait()
		requireJoinError(t, startJoin(t.Context(), open(), worker("b", 2), 3), ErrDuplicateName)
		requireJoinError(t, waiting, ErrDuplicateName)
		requireJoinError(t, other, ErrDuplicateName)
		require.Zero(t, time.Since(begun))

		waiting = startJoin(t.Context(), open(), worker("a", 0), 2)
		synctest.Wait()
		second := mustJoin(t, startJoin(t.Context(), open(), worker("b", 1), 2))
		require.NoError(t, mustJoin(t, waiting).Leave(t.Context()))
		require.Zero(t, time.Since(begun))

		waiting = startJoin(t.Context(), open(), worker("a", 0), 1)
		synctest.Wait()
		require.NoError(t, second.Leave(t.Context()))
		mustJoin(t, waiting)
		require.Zero(t, time.Since(begun))
	})
}

// TestSameIncarnationAgain tests a worker that joins again after its claims could not be withdrawn.
// It succeeds with another URL while the group is open, and only with the same URLs once the group
// is complete.
func TestSameIncarnationAgain(t *testing.T) {
	for _, late := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := memoryStore(t)()
			o := newOutageStore(s)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			a, b := worker("a", 0), worker("b", 1)
			waiting := startJoin(ctx, o, a, 2)
			synctest.Wait()
			o.end()
			requireJoinError(t, waiting, context.DeadlineExceeded)
			moved := a
			moved.URLs = []string{"uv://elsewhere"}
			if late {
				mustJoin(t, startJoin(t.Context(), s, b, 2))
				require.ErrorContains(t, requireJoinError(t, startJoin(t.Context(), s, moved, 2), ErrRejoin), "other URLs")
				requireMembers(t, mustJoin(t, startJoin(t.Context(), s, a, 2)), a, b)
				return
			}
			waiting = startJoin(t.Context(), s, moved, 2)
			synctest.Wait()
			requireMembers(t, mustJoin(t, startJoin(t.Context(), s, b, 2)), moved, b)
			requireMembers(t, mustJoin(t, waiting), moved, b)
		})
	}
}
