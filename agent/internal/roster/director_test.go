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

// director decides who makes the next call to a store, in a bubble of
// testing/synctest: all the others stand still. With one seed all goes alike.
type director struct {
	rng *rand.Rand

	mu      sync.Mutex
	waiting []ask
	playing int
}

type ask struct {
	actor int
	leave chan struct{}
}

func newDirector(seed uint64) *director { return &director{rng: rand.New(rand.NewPCG(seed, 1))} }

// play runs f as an actor.
func (d *director) play(f func()) {
	d.playing++
	go func() {
		defer func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.playing--
		}()
		f()
	}()
}

// ask waits for leave to make a call.
func (d *director) ask(actor int) {
	leave := make(chan struct{})
	d.mu.Lock()
	d.waiting = append(d.waiting, ask{actor, leave})
	d.mu.Unlock()
	<-leave
}

// direct returns when nobody plays any more. between is called before each call.
func (d *director) direct(between func()) {
	for {
		synctest.Wait()
		d.mu.Lock()
		over, idle := d.playing == 0, len(d.waiting) == 0
		d.mu.Unlock()
		switch {
		case over:
			return
		case idle:
			<-time.NewTimer(10 * time.Millisecond).C // all wait for the time to pass
		default:
			between()
			d.next()
		}
	}
}

func (d *director) next() {
	d.mu.Lock()
	defer d.mu.Unlock()
	slices.SortFunc(d.waiting, func(a, b ask) int { return cmp.Compare(a.actor, b.actor) })
	i := d.rng.IntN(len(d.waiting))
	leave := d.waiting[i].leave
	d.waiting = slices.Delete(d.waiting, i, i+1)
	close(leave)
}

// stage is a store that calls before for each call that is made.
type stage struct {
	store.Store
	before func() error
}

func (s stage) Set(ctx context.Context, key string, value []byte) error {
	if err := s.before(); err != nil {
		return err
	}
	return s.Store.Set(ctx, key, value)
}

func (s stage) Get(ctx context.Context, key string) ([]byte, error) {
	if err := s.before(); err != nil {
		return nil, err
	}
	return s.Store.Get(ctx, key)
}

func (s stage) Wait(ctx context.Context, keys ...string) error {
	if err := s.before(); err != nil {
		return err
	}
	return s.Store.Wait(ctx, keys...)
}

func (s stage) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	if err := s.before(); err != nil {
		return nil, err
	}
	return s.Store.CompareAndSet(ctx, key, expected, desired)
}

func (s stage) Delete(ctx context.Context, key string) (bool, error) {
	if err := s.before(); err != nil {
		return false, err
	}
	return s.Store.Delete(ctx, key)
}

func (s stage) Watch(ctx context.Context, key string) (store.Watcher, error) {
	if err := s.before(); err != nil {
		return nil, err
	}
	return s.Store.Watch(ctx, key)
}
