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
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
)

func comes(t *testing.T, s store.Store, m Member) *Roster {
	t.Helper()
	r, err := JoinDynamic(t.Context(), s, "group", m)
	require.NoError(t, err)
	return r
}

func TestDynamicGroup(t *testing.T) {
	backends(t, func(t *testing.T, open opener) {
		a, c := worker("a", -1), worker("c", 2)
		first := comes(t, open(), a)
		a.Rank = 0
		require.Equal(t, a, first.Self())
		third := comes(t, open(), c)
		b, d := worker("b", -7), worker("d", -1)
		second, fourth := comes(t, open(), b), comes(t, open(), d)
		b.Rank, d.Rank = 1, 3
		wantMembers(t, third, a, c)
		wantMembers(t, second, a, b, c)
		wantMembers(t, fourth, a, b, c, d)

		_, known := first.Lookup("d")
		require.False(t, known)
		require.NoError(t, first.Refresh(t.Context()))
		m, known := first.Lookup("d")
		require.True(t, known)
		require.Equal(t, 3, m.Rank)

		require.NoError(t, second.Leave(t.Context()))
		require.NoError(t, second.Leave(t.Context()))
		require.NoError(t, second.Refresh(t.Context()), "who has left may still look")
		wantMembers(t, second, a, c, d)
		e := worker("e", -1)
		fifth := comes(t, open(), e)
		e.Rank = 1
		wantMembers(t, fifth, a, e, c, d)
	})
}

func TestDynamicConflicts(t *testing.T) {
	backends(t, func(t *testing.T, open opener) {
		a := worker("a", 1)
		r := comes(t, open(), a)
		deaf := worker("deaf", -1)
		deaf.MinVersion, deaf.MaxVersion = 2, 3
		for _, c := range []struct {
			Member
			want []error
			text string
		}{
			{worker("a", 0), []error{ErrDuplicateName}, "RPC worker name a is not unique. Workers 1 and 0 share the same name."},
			{worker("a", 1), []error{ErrRejoin, ErrDuplicateName}, "RPC worker name a is not unique. Another incarnation has it, with rank 1, and has not left"},
			{worker("a", -1), []error{ErrRejoin, ErrDuplicateName}, "is not unique"},
			{worker("b", 1), []error{ErrDuplicateRank}, "RPC worker id 1 is not unique. Worker a and already has ID and b cannot be added."},
			{deaf, []error{ErrVersion}, "workers a and deaf have no version in common"},
		} {
			_, err := JoinDynamic(t.Context(), open(), "group", c.Member)
			for _, want := range c.want {
				require.ErrorIs(t, err, want)
			}
			require.ErrorContains(t, err, c.text)
		}
		_, err := JoinStatic(t.Context(), open(), "group", worker("b", 0), 1)
		require.ErrorIs(t, err, ErrMixed)
		require.ErrorContains(t, err, "RPC group mixes statically and dynamically initialized members which is not supported.")
		require.NoError(t, r.Refresh(t.Context()))
		wantMembers(t, r, a)
	})
}

// A member that died is removed, or replaced by its successor.
func TestSuccessors(t *testing.T) {
	backends(t, func(t *testing.T, open opener) {
		a, b := worker("a", 0), worker("b", 5)
		r, dead := comes(t, open(), a), comes(t, open(), b)
		require.NoError(t, r.Remove(t.Context(), "b", a.Incarnation), "that is not it")
		require.NoError(t, r.Refresh(t.Context()))
		require.True(t, r.Current("b", b.Incarnation))
		require.NoError(t, r.Remove(t.Context(), "b", b.Incarnation))
		require.NoError(t, r.Remove(t.Context(), "b", b.Incarnation))
		require.NoError(t, r.Refresh(t.Context()))
		wantMembers(t, r, a)
		require.ErrorIs(t, dead.Refresh(t.Context()), ErrRemoved)

		second := started(b)
		dead = comes(t, open(), second)
		third := worker("b", -1)
		third.Replace = true
		now := comes(t, open(), third)
		third.Rank = 5
		wantMembers(t, now, a, third)
		require.ErrorIs(t, dead.Refresh(t.Context()), ErrRemoved)
		require.True(t, dead.Current("b", third.Incarnation))
		require.False(t, dead.Current("b", second.Incarnation))
		require.NoError(t, dead.Leave(t.Context()), "it does not throw its successor out")
		require.NoError(t, now.Refresh(t.Context()))

		fourth := worker("b", 0)
		fourth.Replace = true
		_, err := JoinDynamic(t.Context(), open(), "group", fourth)
		require.ErrorIs(t, err, ErrDuplicateRank, "only its own place")
	})
}

// With many who come at once each gets a rank of its own, from 0 on.
func TestManyComeAtOnce(t *testing.T) {
	backends(t, func(t *testing.T, open opener) {
		const workers = 16
		var coming []<-chan joined
		for i := range workers {
			s := open()
			coming = append(coming, patience.Start(func() joined {
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
		require.True(t, seen(t, open(), "group").vacant())
	})
}

func TestNoRankIsFree(t *testing.T) {
	members := make([]Member, maxWorld)
	for rank := range members {
		members[rank] = Member{Name: fmt.Sprint(rank), Rank: rank}
	}
	_, _, err := admit(members, worker("a", -1))
	require.ErrorIs(t, err, ErrMember)
	_, last, err := admit(members[:maxRank], worker("a", -1))
	require.NoError(t, err)
	require.Equal(t, maxRank, last.Rank)
}

func TestWatch(t *testing.T) {
	backends(t, func(t *testing.T, open opener) {
		r := comes(t, open(), worker("a", -1))
		b := worker("b", -1)
		second := comes(t, open(), b) // before Watch, and after r heard of the group last
		ctx, cancel := context.WithCancel(t.Context())
		changes := make(chan Change)
		watching := patience.Start(func() error { return r.Watch(ctx, func(c Change) { changes <- c }) })
		next := func(want Member, joined bool) {
			t.Helper()
			c := patience.Finish(t, changes)
			require.Equal(t, want.Incarnation, c.Member.Incarnation)
			require.Equal(t, joined, c.Joined)
			require.Equal(t, joined, r.Current(want.Name, want.Incarnation))
		}
		next(b, true)
		require.NoError(t, second.Leave(t.Context()))
		next(b, false)
		c := worker("c", -1)
		comes(t, open(), c)
		next(c, true)
		again := started(c)
		again.Replace = true
		comes(t, open(), again)
		next(c, false)
		next(again, true)

		cancel()
		err := patience.Finish(t, watching)
		require.ErrorIs(t, err, context.Canceled)
		var typed *Error
		require.ErrorAs(t, err, &typed)
		require.Equal(t, "watch", typed.Op)
	})
}

func TestWatchEndsWithTheMember(t *testing.T) {
	backends(t, func(t *testing.T, open opener) {
		a := worker("a", -1)
		r, other := comes(t, open(), a), comes(t, open(), worker("b", -1))
		watching := patience.Start(func() error { return r.Watch(t.Context(), func(Change) {}) })
		require.NoError(t, other.Remove(t.Context(), "a", a.Incarnation))
		require.ErrorIs(t, patience.Finish(t, watching), ErrRemoved)
	})
}

func TestWatchOfAStaticGroup(t *testing.T) {
	r := formed(t, onMemory(t), worker("a", 0))[0]
	ctx, cancel := context.WithCancel(t.Context())
	watching := patience.Start(func() error { return r.Watch(ctx, func(Change) {}) })
	cancel()
	require.ErrorIs(t, patience.Finish(t, watching), context.Canceled)
}

// Static members that wait learn of a dynamic one, once each; then who tries again
// decides what it is.
func TestDynamicAfterAMixedGroup(t *testing.T) {
	backends(t, func(t *testing.T, open opener) {
		waiting := joining(t.Context(), open(), worker("a", 0), 2)
		s := open()
		_, err := store.Await(t.Context(), s, newShelf(s, "group").nameKey(1, "a"))
		require.NoError(t, err)
		b := worker("b", -1)
		_, err = JoinDynamic(t.Context(), s, "group", b)
		require.ErrorIs(t, err, ErrMixed)
		failsJoin(t, waiting, ErrMixed)
		r := comes(t, s, b)
		b.Rank = 0
		wantMembers(t, r, b)
	})
}

// Members that are about to leave a static group form a dynamic one.
func TestDynamicAfterStatic(t *testing.T) {
	backends(t, func(t *testing.T, open opener) {
		old := formed(t, open, worker("a", 0), worker("b", 1))
		require.NoError(t, old[0].Leave(t.Context()))
		s := open()
		coming := patience.Start(func() joined {
			r, err := JoinDynamic(t.Context(), s, "group", worker("a", -1))
			return joined{r, err}
		})
		require.NoError(t, old[1].Leave(t.Context()))
		require.Equal(t, uint64(2), mustJoin(t, coming).Generation())
		require.NoError(t, old[1].Leave(t.Context()))
	})
}

// An answer that never came: the change was made, or was not.
func TestDynamicCallGivenUp(t *testing.T) {
	for _, made := range []bool{true, false} {
		s := onMemory(t)()
		r := comes(t, s, worker("a", -1))
		lost := errors.New("no answer")
		hooked := &oneLost{Store: s, made: made, err: lost}
		_, err := JoinDynamic(t.Context(), hooked, "group", worker("b", -1))
		require.ErrorIs(t, err, lost)
		require.NoError(t, r.Refresh(t.Context()))
		require.Len(t, r.Members(), 1)
	}
}

// oneLost is a store whose first compare-and-set fails, though it may be made.
type oneLost struct {
	store.Store
	made bool
	err  error
	lost bool
}

func (o *oneLost) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
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

// Members come, go, are replaced and die between any two calls of each other: the
// list always is one that some order of them makes.
func TestDynamicInAnyOrder(t *testing.T) {
	const workers, lives = 4, 3
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) {
			d, s := newDirector(seed), onMemory(t)()
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			stay := make([]Member, workers)
			for i := range workers {
				own := stage{s, func() error { d.ask(i); return nil }}
				var mine []Member
				for range lives {
					mine = append(mine, identity(d, worker(fmt.Sprint("w", i), -1)))
				}
				d.play(func() {
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
			d.direct(func() {})
			g := seen(t, s, "group")
			require.Len(t, g.members, workers, "seed %d", seed)
			for _, m := range stay {
				m.Replace = false
				require.Contains(t, g.members, m, "seed %d", seed)
			}
		})
	}
}

func TestDescribe(t *testing.T) {
	require.Equal(t, "rank 3 of 4 has", describe([]int{3}, 4))
	require.Equal(t, "ranks 2, 3 of 4 have", describe([]int{2, 3}, 4))
	require.Equal(t, 1, strings.Count(describe(make([]int, 17), 20), "and 1 more"))
}
