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
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
)

// identity is an incarnation that a seed decides, as all else.
func identity(d *director, m Member) Member {
	for i := range m.Incarnation {
		m.Incarnation[i] = byte(d.rng.Uint32())
	}
	return m
}

// ledger holds who was in each generation, as its members saw it.
type ledger map[uint64][]Member

// note fails where two members of one generation saw different ones.
func (l ledger) note(r *Roster) error {
	got := r.Members()
	if before, known := l[r.Generation()]; known && fmt.Sprint(before) != fmt.Sprint(got) {
		return fmt.Errorf("generation %d: %v and %v", r.Generation(), before, got)
	}
	l[r.Generation()] = got
	return nil
}

const seeds = 150

// Three members join and leave again and again, and each call to the store may come
// before or after any of the others.
func TestRoundsInAnyOrder(t *testing.T) {
	const world, rounds = 3, 4
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) {
			d, s := newDirector(seed), onMemory(t)()
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			seen := make(chan *Roster, world*rounds)
			for rank := range world {
				var lives []Member
				for range rounds {
					lives = append(lives, identity(d, worker(fmt.Sprint("w", rank), rank)))
				}
				own := stage{s, func() error { d.ask(rank); return nil }}
				d.play(func() {
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
			d.direct(func() {})
			close(seen)
			book := ledger{}
			for r := range seen {
				require.NoError(t, book.note(r), "seed %d", seed)
			}
			require.Len(t, book, rounds, "seed %d", seed)
		})
	}
}

// Members give up at any time and try again: they agree all the same on who was in
// each generation, and nobody is stuck.
func TestGivingUpInAnyOrder(t *testing.T) {
	const world, rounds = 3, 3
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) {
			d, s := newDirector(seed), onMemory(t)()
			cancels := make([]context.CancelFunc, world)
			book, met := ledger{}, make([]int, world)
			enough := func() bool { return met[0] >= rounds && met[1] >= rounds && met[2] >= rounds }
			all, stop := context.WithTimeout(t.Context(), time.Hour)
			defer stop()
			for rank := range world {
				lives := rand.New(rand.NewPCG(seed, uint64(rank)))
				own := stage{s, func() error { d.ask(rank); return nil }}
				d.play(func() {
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
			d.direct(func() {
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

// interposed runs a scenario again and again: with a store that, before its n-th
// call, lets something else happen to its end, or to where it waits. It ends when
// there is no n-th call.
func interposed(t *testing.T, scenario func(t *testing.T, s, hooked store.Store, meanwhile func(f func()))) {
	for n := 1; ; n++ {
		reached := false
		synctest.Test(t, func(t *testing.T) {
			var then func()
			s, calls := onMemory(t)(), 0
			hooked := stage{s, func() error {
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

// within is a context for what must be over soon.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestOtherJoinsBeforeEachCall(t *testing.T) {
	interposed(t, func(t *testing.T, s, hooked store.Store, meanwhile func(func())) {
		a, b := worker("a", 0), worker("b", 1)
		other := make(chan joined, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		asked := false
		meanwhile(func() { asked = true; r, err := JoinStatic(within(t), s, "group", b, 2); other <- joined{r, err} })
		r, err := JoinStatic(ctx, hooked, "group", a, 2)
		if err == nil {
			wantMembers(t, r, a, b)
			wantMembers(t, mustJoin(t, other), a, b)
			return
		}
		require.ErrorIs(t, err, context.DeadlineExceeded)
		if !asked {
			return
		}
		// This one gave up. If the other came in time it is in a group with one who has left.
		got := patience.Finish(t, other)
		if got.err == nil {
			left, err := s.Get(t.Context(), got.r.visit.goneKey(1, 0))
			require.NoError(t, err)
			require.Equal(t, mark, left)
			return
		}
		require.ErrorContains(t, got.err, "rank 0 of 2 has not joined")
	})
}

func TestConflictBeforeEachCall(t *testing.T) {
	interposed(t, func(t *testing.T, s, hooked store.Store, meanwhile func(func())) {
		other := make(chan joined, 1)
		meanwhile(func() { r, err := JoinStatic(within(t), s, "group", worker("a", 1), 3); other <- joined{r, err} })
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := JoinStatic(ctx, hooked, "group", worker("a", 0), 3)
		if !isAny(err, ErrDuplicateName) {
			// It was withdrawing, or had; the other one waits for the rest.
			require.ErrorIs(t, err, context.DeadlineExceeded)
			return
		}
		failsJoin(t, other, ErrDuplicateName)
	})
}

func TestOtherLeavesAndJoinsAgainBeforeEachCall(t *testing.T) {
	interposed(t, func(t *testing.T, s, hooked store.Store, meanwhile func(func())) {
		stores := []store.Store{hooked, s}
		old := formed(t, func() store.Store { s := stores[0]; stores = stores[1:]; return s }, worker("a", 0), worker("b", 1))
		a, b := worker("a", 0), worker("b", 1)
		other := make(chan joined, 1)
		again := func() {
			err := old[1].Leave(within(t))
			var r *Roster
			if err == nil {
				r, err = JoinStatic(within(t), s, "group", b, 2)
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
		if err != nil { // the other came when this one had given up
			require.ErrorIs(t, err, context.DeadlineExceeded)
			failsJoin(t, other, context.DeadlineExceeded)
			return
		}
		wantMembers(t, r, a, b)
		wantMembers(t, mustJoin(t, other), a, b)
	})
}

var errDied = errors.New("died")

// A member that dies before any of its calls leaves the others with an error in
// time, or in a group which all see alike; and its successor with success or with
// an error that says why not.
func TestDeathBeforeEachCall(t *testing.T) {
	for n := 1; ; n++ {
		died := false
		synctest.Test(t, func(t *testing.T) {
			s, calls := onMemory(t)(), 0
			mortal := stage{s, func() error {
				calls++
				died = calls >= n
				if died {
					return errDied
				}
				return nil
			}}
			b := worker("b", 1)
			waiting := joining(within(t), s, b, 2)
			synctest.Wait()
			dead, _ := JoinStatic(t.Context(), mortal, "group", worker("a", 0), 2)
			if dead != nil {
				_ = dead.Leave(t.Context())
			}
			a := worker("a", 0)
			r, err := JoinStatic(within(t), s, "group", a, 2)
			got := <-waiting
			switch {
			case err == nil: // before the dead one had claimed anything
				wantMembers(t, r, a, b)
				wantMembers(t, got.r, a, b)
			case got.err == nil:
				m, _ := got.r.Rank(0)
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
