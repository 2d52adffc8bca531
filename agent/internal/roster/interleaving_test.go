package roster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// seededMember returns m with a pseudo-random incarnation that the generator of d makes, so that
// one seed always gives the same.
func seededMember(d *scheduler, m Member) Member {
	for i := range m.Incarnation {
		m.Incarnation[i] = byte(d.rng.Uint32())
	}
	return m
}

// membersByGeneration is the members of each generation, as they saw it.
type membersByGeneration map[uint64][]Member

// note records the member list of r under its generation. It returns an error if another member has
// recorded a different list for the same generation, and nil otherwise.
func (l membersByGeneration) note(r *Roster) error {
	got := r.Members()
	if before, known := l[r.Generation()]; known && fmt.Sprint(before) != fmt.Sprint(got) {
		return fmt.Errorf("generation %d: %v and %v", r.Generation(), before, got)
	}
	l[r.Generation()] = got
	return nil
}

const seeds = 150

// TestStaticJoinsInterleaved runs three members that join and leave repeatedly, with their calls to
// the store in many random orders. It tests that no call fails, and that the members agree on the
// list of each generation.
func TestStaticJoinsInterleaved(t *testing.T) {
	const world, rounds = 3, 4
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) {
			d, s := newScheduler(seed), memoryStore(t)()
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			seen := make(chan *Roster, world*rounds)
			for rank := range world {
				var lives []Member
				for range rounds {
					lives = append(lives, seededMember(d, worker(fmt.Sprint("w", rank), rank)))
				}
				own := hookedStore{s, func() error { d.acquire(rank); return nil }}
				d.runActor(func() {
					for _, self := range lives {
						r, err := JoinStatic(ctx, own, "group", self, world)
						if err == nil {
							seen <- r
							err = r.Leave(ctx)
						}
						if err != nil {
							t.Errorf("seed %d: %v", seed, err)
							return
						}
					}
				})
			}
			d.run(func() {})
			close(seen)
			book := membersByGeneration{}
			for r := range seen {
				require.NoError(t, book.note(r), "seed %d", seed)
			}
			require.Len(t, book, rounds, "seed %d", seed)
		})
	}
}

// TestCanceledJoinsInterleaved cancels the joins of three members at random times; the members
// repeat them. It tests that the members agree on the list of each generation, and that each of
// them joins several times.
func TestCanceledJoinsInterleaved(t *testing.T) {
	const world, rounds = 3, 3
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) {
			d, s := newScheduler(seed), memoryStore(t)()
			cancels := make([]context.CancelFunc, world)
			book, met := membersByGeneration{}, make([]int, world)
			enough := func() bool { return met[0] >= rounds && met[1] >= rounds && met[2] >= rounds }
			all, stop := context.WithTimeout(t.Context(), time.Hour)
			defer stop()
			for rank := range world {
				lives := rand.New(rand.NewPCG(seed, uint64(rank)))
				own := hookedStore{s, func() error { d.acquire(rank); return nil }}
				d.runActor(func() {
					for all.Err() == nil {
						self := worker(fmt.Sprint("w", rank), rank)
						self.Incarnation[0], self.Incarnation[1] = byte(lives.Uint32()), byte(rank)
						ctx, cancel := context.WithCancel(all)
						cancels[rank] = cancel // actors run one at a time
						r, err := JoinStatic(ctx, own, "group", self, world)
						cancel()
						switch {
						case err == nil:
							met[rank]++
							if err := errors.Join(book.note(r), r.Leave(t.Context())); err != nil {
								t.Errorf("seed %d: %v", seed, err)
								return
							}
						case !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded):
							t.Errorf("seed %d: %v", seed, err)
							return
						}
					}
				})
			}
			d.run(func() {
				if enough() {
					stop()
				} else if d.rng.IntN(60) == 0 {
					if cancel := cancels[d.rng.IntN(world)]; cancel != nil {
						cancel()
					}
				}
			})
			require.True(t, enough(), "seed %d: %v", seed, met)
		})
	}
}

// atEachCall runs scenario repeatedly, each time on a new store s. The scenario passes a function f
// to meanwhile. In the n-th run, f is started before the n-th call to the store hooked that
// follows, and that call waits until f has returned or is blocked. atEachCall returns after the
// first run that makes fewer than n such calls.
func atEachCall(t *testing.T, scenario func(t *testing.T, s, hooked store.Store, meanwhile func(f func()))) {
	for n := 1; ; n++ {
		reached := false
		synctest.Test(t, func(t *testing.T) {
			var then func()
			s, calls := memoryStore(t)(), 0
			hooked := hookedStore{s, func() error {
				calls++
				if calls == n && then != nil {
					reached = true
					go then()
					synctest.Wait()
				}
				return nil
			}}
			scenario(t, s, hooked, func(f func()) { then = f; calls = 0 })
		})
		if t.Failed() {
			t.Logf("before call %d", n)
		}
		if !reached || t.Failed() {
			require.Greater(t, n, 2)
			return
		}
	}
}

// shortContext returns a context that ends after 20 seconds or with the test, for calls that must
// succeed soon.
func shortContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestConcurrentJoinBeforeEachCall(t *testing.T) {
	atEachCall(t, func(t *testing.T, s, hooked store.Store, meanwhile func(func())) {
		a, b := worker("a", 0), worker("b", 1)
		other := make(chan joined, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		asked := false
		meanwhile(func() { asked = true; r, err := JoinStatic(shortContext(t), s, "group", b, 2); other <- joined{r, err} })
		r, err := JoinStatic(ctx, hooked, "group", a, 2)
		if err == nil {
			requireMembers(t, r, a, b)
			requireMembers(t, mustJoin(t, other), a, b)
			return
		}
		require.ErrorIs(t, err, context.DeadlineExceeded)
		if !asked {
			return
		}
		// This member timed out. If the other joined before, it is in a group with one that has left.
		got := testwait.Finish(t, other)
		if got.err == nil {
			left, err := s.Get(t.Context(), got.r.groupAccess.leftKey(1, 0))
			require.NoError(t, err)
			require.Equal(t, flagValue, left)
			return
		}
		require.ErrorContains(t, got.err, "rank 0 of 2 has not joined")
	})
}

func TestConflictBeforeEachCall(t *testing.T) {
	atEachCall(t, func(t *testing.T, s, hooked store.Store, meanwhile func(func())) {
		other := make(chan joined, 1)
		meanwhile(func() { r, err := JoinStatic(shortContext(t), s, "group", worker("a", 1), 3); other <- joined{r, err} })
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := JoinStatic(ctx, hooked, "group", worker("a", 0), 3)
		if !isAny(err, ErrDuplicateName) {
			// It was withdrawing or had withdrawn; the other one waits for the third member.
			require.ErrorIs(t, err, context.DeadlineExceeded)
			return
		}
		requireJoinError(t, other, ErrDuplicateName)
	})
}

func TestConcurrentRejoinBeforeEachCall(t *testing.T) {
	atEachCall(t, func(t *testing.T, s, hooked store.Store, meanwhile func(func())) {
		stores := []store.Store{hooked, s}
		old := formGroup(t, func() store.Store { s := stores[0]; stores = stores[1:]; return s }, worker("a", 0), worker("b", 1))
		a, b := worker("a", 0), worker("b", 1)
		other := make(chan joined, 1)
		again := func() {
			err := old[1].Leave(shortContext(t))
			var r *Roster
			if err == nil {
				r, err = JoinStatic(shortContext(t), s, "group", b, 2)
			}
			other <- joined{r, err}
		}
		asked := false
		meanwhile(func() { asked = true; again() })
		require.NoError(t, old[0].Leave(t.Context()))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		r, err := JoinStatic(ctx, hooked, "group", a, 2)
		if !asked {
			require.ErrorIs(t, err, context.DeadlineExceeded)
			return
		}
		if err != nil { // the other joined after this one had timed out
			require.ErrorIs(t, err, context.DeadlineExceeded)
			requireJoinError(t, other, context.DeadlineExceeded)
			return
		}
		requireMembers(t, r, a, b)
		requireMembers(t, mustJoin(t, other), a, b)
	})
}

var errCrashed = errors.New("died")

// TestCrashBeforeEachCall tests a member that crashes before any of its calls to the store. The
// other member then gets a group or an error before its context ends; the successor of the crashed
// one is in that same group, or gets an error with the reason.
func TestCrashBeforeEachCall(t *testing.T) {
	for n := 1; ; n++ {
		died := false
		synctest.Test(t, func(t *testing.T) {
			s, calls := memoryStore(t)(), 0
			failing := hookedStore{s, func() error {
				calls++
				died = calls >= n
				if died {
					return errCrashed
				}
				return nil
			}}
			b := worker("b", 1)
			waiting := startJoin(shortContext(t), s, b, 2)
			synctest.Wait()
			dead, _ := JoinStatic(t.Context(), failing, "group", worker("a", 0), 2)
			if dead != nil {
				_ = dead.Leave(t.Context())
			}
			a := worker("a", 0)
			r, err := JoinStatic(shortContext(t), s, "group", a, 2)
			got := <-waiting
			switch {
			case err == nil: // it crashed before its first claim
				requireMembers(t, r, a, b)
				requireMembers(t, got.r, a, b)
			case got.err == nil:
				m, _ := ofRank(got.r, 0)
				require.NotEqual(t, a.Incarnation, m.Incarnation)
				require.True(t, isAny(err, ErrRejoin, context.DeadlineExceeded), "call %d: %v", n, err)
			default:
				require.ErrorIs(t, err, ErrRejoin)
				require.ErrorIs(t, got.err, ErrRejoin)
			}
		})
		if !died || t.Failed() {
			require.Greater(t, n, 8)
			return
		}
	}
}
