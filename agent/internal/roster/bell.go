package roster

import (
	"context"
	"errors"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
)

// bell is a key that somebody sets when it is time to look at the gate again. A
// plain key, because PyTorch's server does not wake those who wait for one that
// was made by compare-and-set. Whoever should ring may die before, and the store
// may lose the key: nobody waits long.
type bell struct {
	store store.Store
	key   string
	rung  bool
	slice time.Duration
}

const (
	firstSlice = 100 * time.Millisecond
	lastSlice  = 2 * time.Second
)

func newBell(s *shelf, key string) *bell { return &bell{s.base, key, false, firstSlice} }

// wait returns nil when it is worth to look again. A bell rings once.
func (b *bell) wait(ctx context.Context) error {
	d := b.slice
	b.slice = min(2*b.slice, lastSlice)
	if b.rung {
		return pause(ctx, d)
	}
	short, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	err := b.store.Wait(short, b.key)
	b.rung = err == nil
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return err
	case trouble(err):
		return pause(ctx, firstPause) // whoever looks waits until the store is back
	case short.Err() != nil, errors.Is(err, context.DeadlineExceeded): // a store may be faster than the context
		return nil
	}
	return err
}
