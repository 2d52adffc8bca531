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

func isAny(err error, targets ...error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

func TestStaticGroup(t *testing.T) {
	forEachStore(t, func(t *testing.T, open openFunc) {
		want := []Member{worker("c", 0), worker("a", 1), worker("b:-_9", 2)}
		for i, r := range formGroup(t, open, want...) {
			requireMembers(t, r, want...)
			require.Equal(t, want[i].Incarnation, r.Self().Incarnation)
			m, ok := lookup(r, "a")
			require.True(t, ok)
			require.Equal(t, 1, m.Rank)
			m, ok = ofRank(r, 2)
			require.True(t, ok)
			require.Equal(t, "b:-_9", m.Name)
			_, ok = lookup(r, "d")
			require.False(t, ok)
			_, ok = ofRank(r, 3)
			require.False(t, ok)
			_, ok = ofRank(r, -1)
			require.False(t, ok)
			require.True(t, isCurrent(r, "c", want[0].Incarnation))
			require.False(t, isCurrent(r, "c", want[1].Incarnation))
			require.False(t, isCurrent(r, "d", want[0].Incarnation))
			require.NoError(t, r.Refresh(t.Context()))
			require.ErrorIs(t, r.Remove(t.Context(), "a", want[1].Incarnation), ErrStatic)
		}
	})
}

func TestGroupOfOne(t *testing.T) {
	forEachStore(t, func(t *testing.T, open openFunc) {
		for range 3 {
			r := formGroup(t, open, worker("a", 0))[0]
			require.NoError(t, r.Leave(t.Context()))
			require.NoError(t, r.Leave(t.Context()))
		}
	})
}

func TestBadArguments(t *testing.T) {
	s := memoryStore(t)()
	good := worker("a", 0)
	type change func(m *Member)
	for _, c := range []struct {
		group  string
		world  int
		change change
		want   error
		text   string
	}{
		{"", 1, func(*Member) {}, ErrName, "a group name of 0 bytes"},
		{strings.Repeat("g", 256), 1, func(*Member) {}, ErrName, "256 bytes"},
		{"g", 1, func(m *Member) { m.Name = "" }, ErrName, "a worker's name has 1 to 127 characters of A-Z, a-z, 0-9, _, : and -, got "},
		{"g", 1, func(m *Member) { m.Name = strings.Repeat("n", 128) }, ErrName, "a worker's name has 1 to 127 characters"},
		{"g", 1, func(m *Member) { m.Name = "a b" }, ErrName, `, got "a b"`},
		{"g", 1, func(m *Member) { m.Name = "ä" }, ErrName, ""},
		{"g", 1, func(m *Member) { m.Rank = 1 }, ErrWorldSize, "rank 1 in a group of 1"},
		{"g", 0, func(*Member) {}, ErrWorldSize, "0, and 1 to 32768 are possible"},
		{"g", 1 << 15, func(m *Member) { m.Rank = 1 << 15 }, ErrMember, "rank 32768 exceeds the limit of 32767"},
		{"g", 1<<15 + 1, func(*Member) {}, ErrWorldSize, "32769"},
		{"g", 1, func(m *Member) { m.Rank = -1 }, ErrMember, "rank -1"},
		{"g", 1, func(m *Member) { m.Incarnation = Incarnation{} }, ErrMember, "no incarnation"},
		{"g", 1, func(m *Member) { m.MinVersion = 2 }, ErrMember, "versions from 2 to 1"},
		{"g", 1, func(m *Member) { m.URLs = make([]string, 17) }, ErrMember, "17 addresses"},
		{"g", 1, func(m *Member) { m.URLs[0] = strings.Repeat("u", 2049) }, ErrMember, "2049 bytes"},
		{"g", 1, func(m *Member) { m.Extra = make([]byte, 16385) }, ErrMember, "16385 extra bytes"},
	} {
		m := good.clone()
		c.change(&m)
		_, err := JoinStatic(t.Context(), s, c.group, m, c.world)
		require.ErrorIs(t, err, c.want, c.text)
		require.ErrorContains(t, err, c.text)
		var typed *Error
		require.ErrorAs(t, err, &typed)
		require.Equal(t, Error{"join", c.group, m.Name, typed.Err}, *typed)
		if c.world == 1 && m.Rank == 0 {
			_, err = JoinDynamic(t.Context(), s, c.group, m)
			require.ErrorIs(t, err, c.want, c.text)
		}
	}
	require.Equal(t, absent, readGroup(t, s, "g").phase, "nothing was written to the store")
}

// TestLongNamesAndSlashes tests that a member and a group may have names of the maximal length, and
// that groups with slashes in their names share no keys.
func TestLongNamesAndSlashes(t *testing.T) {
	forEachStore(t, func(t *testing.T, open openFunc) {
		for _, group := range []string{"a", "a/1", "a/1/name", "a/1/name/gate", strings.Repeat("/", 255)} {
			r, err := JoinStatic(t.Context(), open(), group, worker("gate", 0), 1)
			require.NoError(t, err)
			require.Equal(t, uint64(1), r.Generation())
		}
		_, err := JoinStatic(t.Context(), open(), "b", worker(strings.Repeat("n", 127), 0), 1)
		require.NoError(t, err)
	})
}

// TestConflictFailsAllMembers tests for each kind of conflict that all members fail with the same
// error: those that wait, the one that finds the conflict, and one that joins later.
func TestConflictFailsAllMembers(t *testing.T) {
	older, newer := worker("o", 0), worker("n", 1)
	older.MinVersion, older.MaxVersion = 1, 3
	newer.MinVersion, newer.MaxVersion = 4, 5
	any2, any3 := worker("y", 2), worker("x", 3)
	any2.MaxVersion, any3.MaxVersion = 9, 9
	type arrival struct {
		Member
		world int
	}
	for name, c := range map[string]struct {
		waiting []arrival // of a group of 4
		last    arrival
		want    error
		text    string
	}{
		"name": {[]arrival{{worker("X", 0), 4}, {worker("b", 3), 4}}, arrival{worker("X", 1), 4}, ErrDuplicateName,
			"name is not unique: ranks 0 and 1 have the name X"},
		"rank": {[]arrival{{worker("z", 0), 4}, {worker("a", 1), 4}}, arrival{worker("b", 1), 4}, ErrDuplicateRank,
			"rank is not unique: worker a has rank 1, so b cannot have it"},
		"again": {[]arrival{{worker("z", 0), 4}, {worker("a", 1), 4}}, arrival{worker("a", 1), 4}, ErrRejoin, "worker a with rank 1 wants to join twice"},
		"world": {[]arrival{{worker("z", 0), 4}, {worker("a", 1), 4}}, arrival{worker("b", 2), 3}, ErrWorldSize, "worker b wants a group of 3, and others one of 4"},
		"mixed": {[]arrival{{worker("z", 0), 4}, {worker("a", 1), 4}}, arrival{worker("b", 2), 0}, ErrMixed,
			"static and dynamic members are mixed"},
		"version": {[]arrival{{older, 4}, {any2, 4}, {any3, 4}}, arrival{newer, 4}, ErrVersion, "workers o and n have no version in common"},
	} {
		t.Run(name, func(t *testing.T) {
			forEachStore(t, func(t *testing.T, open openFunc) {
				var waiting []<-chan joined
				for _, m := range c.waiting {
					waiting = append(waiting, startJoin(t.Context(), open(), restartedSameVersions(m.Member), m.world))
				}
				s := open()
				for _, m := range c.waiting { // all have claimed, so the last one is c.last
					_, err := store.Await(t.Context(), s, newKeySpace(s, "group").nameKey(1, m.Name))
					require.NoError(t, err)
				}
				var err error
				if c.last.world == 0 {
					_, err = JoinDynamic(t.Context(), open(), "group", c.last.Member)
				} else {
					_, err = JoinStatic(t.Context(), open(), "group", restartedSameVersions(c.last.Member), c.last.world)
				}
				require.ErrorIs(t, err, c.want)
				require.ErrorContains(t, err, c.text)
				for _, ch := range waiting {
					require.ErrorContains(t, requireJoinError(t, ch, c.want), c.text)
				}
				late := freeRank(c.last.Rank, c.waiting[0].Rank, c.waiting[1].Rank)
				if len(waiting) == 2 {
					require.ErrorContains(t, requireJoinError(t, startJoin(t.Context(), open(), worker("late", late), 4), c.want), c.text)
				}
			})
		})
	}
}

// restartedSameVersions returns a new incarnation of m with its name, rank and versions.
func restartedSameVersions(m Member) Member {
	n := restartedMember(m)
	n.MinVersion, n.MaxVersion = m.MinVersion, m.MaxVersion
	return n
}

func freeRank(taken ...int) int {
	for r := range 4 {
		free := true
		for _, x := range taken {
			free = free && x != r
		}
		if free {
			return r
		}
	}
	return 0
}

// TestAllMembersHaveOneName tests that four members with the same name all fail with
// ErrDuplicateName, as in PyTorch's test_duplicate_name.
func TestAllMembersHaveOneName(t *testing.T) {
	forEachStore(t, func(t *testing.T, open openFunc) {
		var coming []<-chan joined
		for rank := range 4 {
			coming = append(coming, startJoin(t.Context(), open(), worker("duplicate_name", rank), 4))
		}
		for _, ch := range coming {
			require.ErrorContains(t, requireJoinError(t, ch, ErrDuplicateName), "is not unique")
		}
	})
}

// TestGroupAfterConflict tests, several times on one store, that the group forms at the next
// attempt after a conflict has failed all members.
func TestGroupAfterConflict(t *testing.T) {
	forEachStore(t, func(t *testing.T, open openFunc) {
		for range 3 {
			first := startJoin(t.Context(), open(), worker("X", 0), 2)
			second := startJoin(t.Context(), open(), worker("X", 1), 2)
			requireJoinError(t, first, ErrDuplicateName)
			requireJoinError(t, second, ErrDuplicateName)
			for _, r := range formGroup(t, open, worker("a", 0), worker("b", 1)) {
				require.NoError(t, r.Leave(t.Context()))
			}
		}
	})
}

func TestCompleteGroupRejectsLateJoins(t *testing.T) {
	forEachStore(t, func(t *testing.T, open openFunc) {
		rosters := formGroup(t, open, worker("a", 0), worker("b", 1))
		s := open()
		_, err := JoinStatic(t.Context(), s, "group", worker("b", 1), 2)
		require.ErrorIs(t, err, ErrRejoin)
		require.NotErrorIs(t, err, ErrDuplicateRank)
		require.ErrorContains(t, err, "another name")
		_, err = JoinStatic(t.Context(), s, "group", worker("c", 1), 2)
		require.ErrorIs(t, err, ErrRejoin)
		require.ErrorIs(t, err, ErrDuplicateRank)
		require.ErrorContains(t, err, "rank is not unique: worker b has rank 1, so c cannot have it")
		_, err = JoinStatic(t.Context(), s, "group", worker("c", 2), 3)
		require.ErrorIs(t, err, ErrWorldSize)
		_, err = JoinDynamic(t.Context(), s, "group", worker("c", 2))
		require.ErrorIs(t, err, ErrMixed)
		_, err = JoinStatic(t.Context(), s, "other", worker("b", 0), 1)
		require.NoError(t, err, "two groups on one store are independent")
		for _, r := range rosters {
			require.NoError(t, r.Leave(t.Context()))
		}
		require.True(t, readGroup(t, s, "group").is(ended, 1))
	})
}

// TestGenerations tests that after a group has ended the next one under its name may have other
// members, another size or another kind, and has the next generation number.
func TestGenerations(t *testing.T) {
	forEachStore(t, func(t *testing.T, open openFunc) {
		for i, names := range []string{"ab", "abc", "c", "ba"} {
			var members []Member
			for rank, name := range names {
				members = append(members, worker(string(name), rank))
			}
			for _, r := range formGroup(t, open, members...) {
				require.Equal(t, uint64(i+1), r.Generation())
				requireMembers(t, r, members...)
				require.NoError(t, r.Leave(t.Context()))
			}
		}
		r, err := JoinDynamic(t.Context(), open(), "group", worker("d", -1))
		require.NoError(t, err)
		_, err = JoinStatic(t.Context(), open(), "group", worker("a", 0), 1)
		require.ErrorIs(t, err, ErrMixed)
		require.ErrorContains(t, err, "static and dynamic members are mixed")
		require.NoError(t, r.Leave(t.Context()))
		require.Equal(t, uint64(6), formGroup(t, open, worker("a", 0))[0].Generation())
	})
}

// TestGenerationsAreSwept tests that after several generations have failed or ended only three keys
// remain on the store: the state and two notifications.
func TestGenerationsAreSwept(t *testing.T) {
	s := &countingStore{Store: memoryStore(t)(), keys: map[string]bool{}}
	for range 5 {
		one, two := startJoin(t.Context(), s, worker("X", 0), 2), startJoin(t.Context(), s, worker("X", 1), 2)
		requireJoinError(t, one, ErrDuplicateName)
		requireJoinError(t, two, ErrDuplicateName)
		for _, r := range formGroup(t, func() store.Store { return s }, worker("a", 0), worker("b", 1)) {
			require.NoError(t, r.Leave(t.Context()))
		}
	}
	left := 0
	for key := range s.keys {
		if _, err := s.Get(t.Context(), key); err == nil {
			left++
		}
	}
	require.Equal(t, 3, left)
}

// TestRejoinWaitsForLastLeave tests that members that join while one member has not left the last
// group wait until it has left, and then form the next group, which may be larger.
func TestRejoinWaitsForLastLeave(t *testing.T) {
	forEachStore(t, func(t *testing.T, open openFunc) {
		old := formGroup(t, open, worker("a", 0), worker("b", 1))
		require.NoError(t, old[0].Leave(t.Context()))
		a, newcomer := worker("a", 0), worker("c", 2)
		first, third := startJoin(t.Context(), open(), a, 3), startJoin(t.Context(), open(), newcomer, 3)
		require.NoError(t, old[1].Leave(t.Context()))
		b := worker("b", 1)
		second := startJoin(t.Context(), open(), b, 3)
		for _, ch := range []<-chan joined{first, second, third} {
			requireMembers(t, mustJoin(t, ch), a, b, newcomer)
		}
	})
}

// TestDeadMember tests that a group does not end while a member that died has not left it: the
// successor of the dead member gets ErrRejoin, and another member waits until its context ends.
func TestDeadMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := memoryStore(t)
		old := formGroup(t, open, worker("a", 0), worker("b", 1))
		require.NoError(t, old[0].Leave(t.Context()))
		_, err := JoinStatic(t.Context(), open(), "group", worker("b", 1), 2)
		require.ErrorIs(t, err, ErrRejoin)

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begun := time.Now()
		_, err = JoinStatic(ctx, open(), "group", worker("a", 0), 2)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "rank 1 of 2 has not left the previous group")
		require.Equal(t, time.Minute, time.Since(begun))
	})
}

func TestMissingMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memoryStore(t)()
		for _, c := range []struct {
			world int
			text  string
		}{
			{2, "rank 0 of 2 has not joined"},
			{4, "ranks 0, 2, 3 of 4 have not joined"},
			{40, "ranks 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, and 23 more of 40 have not joined"},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			begun := time.Now()
			_, err := JoinStatic(ctx, s, "group", worker("a", 1), c.world)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorIs(t, err, store.ErrTimeout)
			require.ErrorContains(t, err, c.text)
			require.Equal(t, time.Hour, time.Since(begun))
			cancel()
		}
		ctx, cancel := context.WithCancel(t.Context())
		coming := startJoin(ctx, s, worker("a", 1), 2)
		synctest.Wait()
		cancel()
		require.ErrorContains(t, requireJoinError(t, coming, context.Canceled), "rank 0 of 2 has not joined")
	})
}

// TestWithdrawal tests that a canceled join ends the generation if no other member has joined, and
// does not conflict with a later join under another name or with another size.
func TestWithdrawal(t *testing.T) {
	forEachStore(t, func(t *testing.T, open openFunc) {
		for i := range 3 {
			ctx, cancel := context.WithCancel(t.Context())
			coming := startJoinSlowCleanup(ctx, open(), worker(fmt.Sprint("a", i), 0), i+2)
			s := open()
			_, err := store.Await(t.Context(), s, newKeySpace(s, "group").nameKey(uint64(i+1), fmt.Sprint("a", i)))
			require.NoError(t, err)
			cancel()
			requireJoinError(t, coming, context.Canceled)
			require.True(t, readGroup(t, s, "group").available(), "the last member that withdraws ends the generation")
		}
		formGroup(t, open, worker("b", 0), worker("a0", 1))
	})
}

// TestOneMemberWithdraws tests that a member goes on waiting while another one withdraws, and that
// other members can then claim the name and the rank of the one that has withdrawn.
func TestOneMemberWithdraws(t *testing.T) {
	forEachStore(t, func(t *testing.T, open openFunc) {
		b := worker("b", 1)
		waiting := startJoin(t.Context(), open(), b, 3)
		s := open()
		_, err := store.Await(t.Context(), s, newKeySpace(s, "group").nameKey(1, "b"))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		coming := startJoinSlowCleanup(ctx, open(), worker("a", 0), 3)
		_, err = store.Await(t.Context(), s, newKeySpace(s, "group").nameKey(1, "a"))
		require.NoError(t, err)
		cancel()
		requireJoinError(t, coming, context.Canceled)
		a, c := worker("a", 2), worker("c", 0) // its name and its rank, each claimed by another member
		first, third := startJoin(t.Context(), open(), c, 3), startJoin(t.Context(), open(), a, 3)
		for _, ch := range []<-chan joined{waiting, first, third} {
			requireMembers(t, mustJoin(t, ch), c, b, a)
		}
	})
}

// TestForeignStoreValues tests that JoinStatic fails with ErrCorrupt or ErrVersion if one of its
// keys has a value that this package did not write.
func TestForeignStoreValues(t *testing.T) {
	for _, key := range []string{"gate", "1/rank/1", "1/rank/0", "1/name/a"} {
		t.Run(key, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memoryStore(t)()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				require.NoError(t, s.Set(ctx, "roster/group/"+key, []byte("foreign")))
				got := testwait.Finish(t, startJoin(ctx, s, worker("a", 0), 2))
				require.True(t, isAny(got.err, ErrCorrupt, ErrVersion), "%v", got.err)
			})
		})
	}
}

// TestSpuriousNotification tests that a member that finds a notification key set, but no change of
// the state, does not poll the store more often than its intervals allow.
func TestSpuriousNotification(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &countingStore{Store: memoryStore(t)(), keys: map[string]bool{}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.NoError(t, s.Set(ctx, "roster/group/1/decided", flagValue))
		_, err := JoinStatic(ctx, s, "group", worker("a", 0), 2)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Less(t, s.calls, 200)
	})
}
