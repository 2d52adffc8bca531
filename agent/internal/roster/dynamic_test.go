package roster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

func mustJoinDynamic(t *testing.T, s store.Store, m Member) *Roster {
	t.Helper()
	r, err := JoinDynamic(t.Context(), s, "group", m)
	require.NoError(t, err)
	return r
}

func TestDynamicGroup(t *testing.T) {
	forEachStore(t, func(t *testing.T, open openFunc) {
		a, c := worker("a", -1), worker("c", 2)
		first := mustJoinDynamic(t, open(), a)
		a.Rank = 0
		require.Equal(t, a, first.Self())
		third := mustJoinDynamic(t, open(), c)
		b, d := worker("b", -7), worker("d", -1)
		second, fourth := mustJoinDynamic(t, open(), b), mustJoinDynamic(t, open(), d)
		b.Rank, d.Rank = 1, 3
		requireMembers(t, third, a, c)
		requireMembers(t, second, a, b, c)
		requireMembers(t, fourth, a, b, c, d)

		_, known := lookup(first, "d")
		require.False(t, known)
		require.NoError(t, first.Refresh(t.Context()))
		m, known := lookup(first, "d")
		require.True(t, known)
		require.Equal(t, 3, m.Rank)

		require.NoError(t, second.Leave(t.Context()))
		require.NoError(t, second.Leave(t.Context()))
		require.NoError(t, second.Refresh(t.Context()), "a member that has left may still refresh")
		requireMembers(t, second, a, c, d)
		e := worker("e", -1)
		fifth := mustJoinDynamic(t, open(), e)
		e.Rank = 1
		requireMembers(t, fifth, a, e, c, d)
	})
}

func TestDynamicConflicts(t *testing.T) {
	forEachStore(t, func(t *testing.T, open openFunc) {
		a := worker("a", 1)
		r := mustJoinDynamic(t, open(), a)
		old := worker("old", -1)
		old.MinVersion, old.MaxVersion = 2, 3
		for _, c := range []struct {
			Member
			want []error
			text string
		}{
			{worker("a", 0), []error{ErrDuplicateName}, "name is not unique: ranks 1 and 0 have the name a"},
			{worker("a", 1), []error{ErrRejoin, ErrDuplicateName}, "name is not unique: another incarnation has the name a, with rank 1, and has not left"},
			{worker("a", -1), []error{ErrRejoin, ErrDuplicateName}, "is not unique"},
			{worker("b", 1), []error{ErrDuplicateRank}, "rank is not unique: worker a has rank 1, so b cannot have it"},
			{old, []error{ErrVersion}, "workers a and old have no version in common"},
		} {
			_, err := JoinDynamic(t.Context(), open(), "group", c.Member)
			for _, want := range c.want {
				require.ErrorIs(t, err, want)
			}
			require.ErrorContains(t, err, c.text)
		}
		_, err := JoinStatic(t.Context(), open(), "group", worker("b", 0), 1)
		require.ErrorIs(t, err, ErrMixed)
		require.ErrorContains(t, err, "static and dynamic members are mixed")
		require.NoError(t, r.Refresh(t.Context()))
		requireMembers(t, r, a)
	})
}

// TestRemoveAndReplace tests that a dead member of a dynamic group can be removed, or replaced by a
// new incarnation with its rank, that the old incarnation then gets ErrRemoved, and that replacing
// does not free another member's rank.
func TestRemoveAndReplace(t *testing.T) {
	forEachStore(t, func(t *testing.T, open openFunc) {
		a, b := worker("a", 0), worker("b", 5)
		r, dead := mustJoinDynamic(t, open(), a), mustJoinDynamic(t, open(), b)
		require.NoError(t, r.Remove(t.Context(), "b", a.Incarnation), "another incarnation")
		require.NoError(t, r.Refresh(t.Context()))
		require.True(t, isCurrent(r, "b", b.Incarnation))
		require.NoError(t, r.Remove(t.Context(), "b", b.Incarnation))
		require.NoError(t, r.Remove(t.Context(), "b", b.Incarnation))
		require.NoError(t, r.Refresh(t.Context()))
		requireMembers(t, r, a)
		require.ErrorIs(t, dead.Refresh(t.Context()), ErrRemoved)

		second := restartedMember(b)
		dead = mustJoinDynamic(t, open(), second)
		third := worker("b", -1)
		third.Replace = true
		now := mustJoinDynamic(t, open(), third)
		third.Rank = 5
		requireMembers(t, now, a, third)
		require.ErrorIs(t, dead.Refresh(t.Context()), ErrRemoved)
		require.True(t, isCurrent(dead, "b", third.Incarnation))
		require.False(t, isCurrent(dead, "b", second.Incarnation))
		require.NoError(t, dead.Leave(t.Context()), "it does not remove its successor")
		require.NoError(t, now.Refresh(t.Context()))

		fourth := worker("b", 0)
		fourth.Replace = true
		_, err := JoinDynamic(t.Context(), open(), "group", fourth)
		require.ErrorIs(t, err, ErrDuplicateRank, "replacing does not free another member's rank")
	})
}

// TestConcurrentDynamicJoins tests that members that join a dynamic group concurrently without a
// rank get the ranks from 0 on, each once, and that the group has no members after all have left.
func TestConcurrentDynamicJoins(t *testing.T) {
	forEachStore(t, func(t *testing.T, open openFunc) {
		const workers = 16
		var coming []<-chan joined
		for i := range workers {
			s := open()
			coming = append(coming, testwait.Start(func() joined {
				r, err := JoinDynamic(t.Context(), s, "group", worker(fmt.Sprint("w", i), -1))
				return joined{r, err}
			}))
		}
		var rosters []*Roster
		for _, ch := range coming {
			rosters = append(rosters, mustJoin(t, ch))
		}
		require.NoError(t, rosters[0].Refresh(t.Context()))
		for rank, m := range rosters[0].Members() {
			require.Equal(t, rank, m.Rank)
		}
		require.Len(t, rosters[0].Members(), workers)
		for _, r := range rosters {
			require.NoError(t, r.Leave(t.Context()))
		}
		require.True(t, readGroup(t, open(), "group").available())
	})
}

func TestNoFreeRank(t *testing.T) {
	members := make([]Member, maxWorld)
	for rank := range members {
		members[rank] = Member{Name: fmt.Sprint(rank), Rank: rank}
	}
	_, _, err := insertMember(members, worker("a", -1))
	require.ErrorIs(t, err, ErrMember)
	_, last, err := insertMember(members[:maxRank], worker("a", -1))
	require.NoError(t, err)
	require.Equal(t, maxRank, last.Rank)
}

func TestWatch(t *testing.T) {
	forEachStore(t, func(t *testing.T, open openFunc) {
		r := mustJoinDynamic(t, open(), worker("a", -1))
		b := worker("b", -1)
		second := mustJoinDynamic(t, open(), b) // after r's last refresh, before Watch
		ctx, cancel := context.WithCancel(t.Context())
		changes := make(chan Change)
		watching := testwait.Start(func() error { return r.Watch(ctx, func(c Change) { changes <- c }) })
		next := func(want Member, joined bool) {
			t.Helper()
			c := testwait.Finish(t, changes)
			require.Equal(t, want.Incarnation, c.Member.Incarnation)
			require.Equal(t, joined, c.Joined)
			require.Equal(t, joined, isCurrent(r, want.Name, want.Incarnation))
		}
		next(b, true)
		require.NoError(t, second.Leave(t.Context()))
		next(b, false)
		c := worker("c", -1)
		mustJoinDynamic(t, open(), c)
		next(c, true)
		again := restartedMember(c)
		again.Replace = true
		mustJoinDynamic(t, open(), again)
		next(c, false)
		next(again, true)

		cancel()
		err := testwait.Finish(t, watching)
		require.ErrorIs(t, err, context.Canceled)
		var typed *Error
		require.ErrorAs(t, err, &typed)
		require.Equal(t, "watch", typed.Op)
	})
}

func TestWatchEndsWhenRemoved(t *testing.T) {
	forEachStore(t, func(t *testing.T, open openFunc) {
		a := worker("a", -1)
		r, other := mustJoinDynamic(t, open(), a), mustJoinDynamic(t, open(), worker("b", -1))
		watching := testwait.Start(func() error { return r.Watch(t.Context(), func(Change) {}) })
		require.NoError(t, other.Remove(t.Context(), "a", a.Incarnation))
		require.ErrorIs(t, testwait.Finish(t, watching), ErrRemoved)
	})
}

func TestWatchStaticGroup(t *testing.T) {
	r := formGroup(t, memoryStore(t), worker("a", 0))[0]
	ctx, cancel := context.WithCancel(t.Context())
	watching := testwait.Start(func() error { return r.Watch(ctx, func(Change) {}) })
	cancel()
	require.ErrorIs(t, testwait.Finish(t, watching), context.Canceled)
}

// TestDynamicAfterMixedGroup tests that a static member that waits and a dynamic one that joins
// both fail with ErrMixed, and that the dynamic one succeeds when it joins again.
func TestDynamicAfterMixedGroup(t *testing.T) {
	forEachStore(t, func(t *testing.T, open openFunc) {
		waiting := startJoin(t.Context(), open(), worker("a", 0), 2)
		s := open()
		_, err := store.Await(t.Context(), s, newKeySpace(s, "group").nameKey(1, "a"))
		require.NoError(t, err)
		b := worker("b", -1)
		_, err = JoinDynamic(t.Context(), s, "group", b)
		require.ErrorIs(t, err, ErrMixed)
		requireJoinError(t, waiting, ErrMixed)
		r := mustJoinDynamic(t, s, b)
		b.Rank = 0
		requireMembers(t, r, b)
	})
}

// TestDynamicAfterStatic tests that JoinDynamic waits until the last member of an ending static
// group has left, and then begins the next generation.
func TestDynamicAfterStatic(t *testing.T) {
	forEachStore(t, func(t *testing.T, open openFunc) {
		old := formGroup(t, open, worker("a", 0), worker("b", 1))
		require.NoError(t, old[0].Leave(t.Context()))
		s := open()
		coming := testwait.Start(func() joined {
			r, err := JoinDynamic(t.Context(), s, "group", worker("a", -1))
			return joined{r, err}
		})
		require.NoError(t, old[1].Leave(t.Context()))
		require.Equal(t, uint64(2), mustJoin(t, coming).Generation())
		require.NoError(t, old[1].Leave(t.Context()))
	})
}

// TestDynamicJoinWithLostReply tests that JoinDynamic fails if the reply to its change of the
// group's state is lost, and that the member is then not in the list, whether or not the change was
// made.
func TestDynamicJoinWithLostReply(t *testing.T) {
	for _, made := range []bool{true, false} {
		s := memoryStore(t)()
		r := mustJoinDynamic(t, s, worker("a", -1))
		lost := errors.New("no answer")
		hooked := &lostReply{Store: s, made: made, err: lost}
		_, err := JoinDynamic(t.Context(), hooked, "group", worker("b", -1))
		require.ErrorIs(t, err, lost)
		require.NoError(t, r.Refresh(t.Context()))
		require.Len(t, r.Members(), 1)
	}
}

// lostReply is a store whose first compare-and-set returns an error, whether or not it is made.
type lostReply struct {
	store.Store
	made bool
	err  error
	lost bool
}

func (o *lostReply) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	if o.lost {
		return o.Store.CompareAndSet(ctx, key, expected, desired)
	}
	o.lost = true
	if o.made {
		if _, err := o.Store.CompareAndSet(ctx, key, expected, desired); err != nil {
			return nil, err
		}
	}
	return nil, o.err
}

// TestDynamicJoinsInterleaved runs members that join, leave, are replaced and die, with their calls
// to the store in many random orders. It tests that the final list has exactly the members that
// stayed.
func TestDynamicJoinsInterleaved(t *testing.T) {
	const workers, lives = 4, 3
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) {
			d, s := newScheduler(seed), memoryStore(t)()
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			stay := make([]Member, workers)
			for i := range workers {
				own := hookedStore{s, func() error { d.acquire(i); return nil }}
				var mine []Member
				for range lives {
					mine = append(mine, seededMember(d, worker(fmt.Sprint("w", i), -1)))
				}
				d.runActor(func() {
					for life, self := range mine {
						self.Replace = life == 1 // the first life ends without leaving
						r, err := JoinDynamic(ctx, own, "group", self)
						if err == nil && life == 1 {
							err = r.Leave(ctx)
						}
						if err == nil && life == 2 {
							stay[i] = r.Self()
						}
						if err != nil {
							t.Errorf("seed %d: %v", seed, err)
							return
						}
					}
				})
			}
			d.run(func() {})
			g := readGroup(t, s, "group")
			require.Len(t, g.members, workers, "seed %d", seed)
			for _, m := range stay {
				m.Replace = false
				require.Contains(t, g.members, m, "seed %d", seed)
			}
		})
	}
}

func TestDescribeRanks(t *testing.T) {
	require.Equal(t, "rank 3 of 4 has", describeRanks([]int{3}, 4))
	require.Equal(t, "ranks 2, 3 of 4 have", describeRanks([]int{2, 3}, 4))
	require.Equal(t, 1, strings.Count(describeRanks(make([]int, 17), 20), "and 1 more"))
}
