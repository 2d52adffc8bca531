package roster

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing/synctest"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
)

// scheduler decides which actor makes the next call to a store, in a bubble of
// testing/synctest. All other actors block. One seed always gives the same order.
type scheduler struct {
	rng *rand.Rand

	mu      sync.Mutex
	waiting []request
	running int
}

type request struct {
	actor   int
	granted chan struct{}
}

func newScheduler(seed uint64) *scheduler { return &scheduler{rng: rand.New(rand.NewPCG(seed, 1))} }

// runActor runs f on a new goroutine as an actor, whose calls to the store d schedules.
func (d *scheduler) runActor(f func()) {
	d.running++
	go func() {
		defer func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.running--
		}()
		f()
	}()
}

// acquire blocks until the scheduler permits the actor with that number to make its next call.
func (d *scheduler) acquire(actor int) {
	granted := make(chan struct{})
	d.mu.Lock()
	d.waiting = append(d.waiting, request{actor, granted})
	d.mu.Unlock()
	<-granted
}

// run permits calls of the actors, one at a time, until all actors have returned. It calls
// beforeEach before it permits a call. It must run in a bubble of testing/synctest.
func (d *scheduler) run(beforeEach func()) {
	for {
		synctest.Wait()
		d.mu.Lock()
		over, idle := d.running == 0, len(d.waiting) == 0
		d.mu.Unlock()
		switch {
		case over:
			return
		case idle:
			<-time.NewTimer(10 * time.Millisecond).C // all actors wait for a timer
		default:
			beforeEach()
			d.next()
		}
	}
}

func (d *scheduler) next() {
	d.mu.Lock()
	defer d.mu.Unlock()
	slices.SortFunc(d.waiting, func(a, b request) int { return cmp.Compare(a.actor, b.actor) })
	i := d.rng.IntN(len(d.waiting))
	granted := d.waiting[i].granted
	d.waiting = slices.Delete(d.waiting, i, i+1)
	close(granted)
}

// hookedStore calls before at the begin of every call, and fails with its error.
type hookedStore struct {
	store.Store
	before func() error
}

func (s hookedStore) Set(ctx context.Context, key string, value []byte) error {
	if err := s.before(); err != nil {
		return err
	}
	return s.Store.Set(ctx, key, value)
}

func (s hookedStore) Get(ctx context.Context, key string) ([]byte, error) {
	if err := s.before(); err != nil {
		return nil, err
	}
	return s.Store.Get(ctx, key)
}

func (s hookedStore) Wait(ctx context.Context, keys ...string) error {
	if err := s.before(); err != nil {
		return err
	}
	return s.Store.Wait(ctx, keys...)
}

func (s hookedStore) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	if err := s.before(); err != nil {
		return nil, err
	}
	return s.Store.CompareAndSet(ctx, key, expected, desired)
}

func (s hookedStore) Delete(ctx context.Context, key string) (bool, error) {
	if err := s.before(); err != nil {
		return false, err
	}
	return s.Store.Delete(ctx, key)
}

func (s hookedStore) Watch(ctx context.Context, key string) (store.Watcher, error) {
	if err := s.before(); err != nil {
		return nil, err
	}
	return s.Store.Watch(ctx, key)
}
