package roster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
)

// shelf is the part of a store that one group has. Its calls outlast trouble with
// the connection to the store, until their contexts end; so each must do no harm
// when it is made twice.
type shelf struct {
	base   store.Store
	prefix string
	tries  int // so often a call is made at most while there is trouble; 0 is no limit
}

func newShelf(s store.Store, group string) *shelf {
	return &shelf{base: s, prefix: "roster/" + url.PathEscape(group) + "/"} // a slash in a name would mix groups
}

func (s *shelf) gateKey() string { return s.prefix + "gate" }

func (s *shelf) key(gen uint64, parts string) string {
	return s.prefix + strconv.FormatUint(gen, 10) + "/" + parts
}

func (s *shelf) rankKey(gen uint64, rank int) string {
	return s.key(gen, "rank/"+strconv.Itoa(rank))
}
func (s *shelf) nameKey(gen uint64, name string) string { return s.key(gen, "name/"+name) }
func (s *shelf) listKey(gen uint64, who Incarnation) string {
	return s.key(gen, fmt.Sprintf("list/%x", who[:]))
}
func (s *shelf) goneKey(gen uint64, rank int) string   { return s.key(gen, "gone/"+strconv.Itoa(rank)) }
func (s *shelf) toldKey(gen uint64, who string) string { return s.key(gen, "told/"+who) }
func (s *shelf) decidedKey(gen uint64) string          { return s.key(gen, "decided") }
func (s *shelf) overKey(gen uint64) string             { return s.key(gen, "over") }

// get returns nil for a key that does not exist or has no value.
func (s *shelf) get(ctx context.Context, key string) (value []byte, err error) {
	err = s.persist(ctx, func() error {
		value, err = s.base.Get(ctx, key)
		return err
	})
	if errors.Is(err, store.ErrNotFound) || len(value) == 0 {
		value = nil
	}
	if errors.Is(err, store.ErrNotFound) {
		err = nil
	}
	return value, err
}

func (s *shelf) set(ctx context.Context, key string, value []byte) error {
	return s.persist(ctx, func() error { return s.base.Set(ctx, key, value) })
}

func (s *shelf) drop(ctx context.Context, key string) error {
	return s.persist(ctx, func() error {
		_, err := s.base.Delete(ctx, key)
		return err
	})
}

// swap puts desired in the place of expected, and returns what is there then; nil
// is a key that does not exist. Where the answer to a first try was lost the
// second finds desired there: it must be what nobody else would write.
func (s *shelf) swap(ctx context.Context, key string, expected, desired []byte) (now []byte, err error) {
	err = s.persist(ctx, func() error {
		now, err = s.base.CompareAndSet(ctx, key, expected, desired)
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	return now, err
}

// look reads the gate.
func (s *shelf) look(ctx context.Context) (*gate, error) {
	value, err := s.get(ctx, s.gateKey())
	if err != nil {
		return nil, err
	}
	if value == nil {
		return &gate{}, nil
	}
	return decodeGate(value)
}

// change puts a gate in the place of another, and returns whether it did.
func (s *shelf) change(ctx context.Context, from, to *gate) (bool, error) {
	to.raw = to.encode()
	now, err := s.swap(ctx, s.gateKey(), from.raw, to.raw)
	return err == nil && bytes.Equal(now, to.raw), err
}

// A store that is being started again comes back some time. One that takes
// connections, and ends them again and again, does not want what it is asked for.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = time.Second
	maxDrops   = 12
)

// persist makes a call again where the store could not be reached.
func (s *shelf) persist(ctx context.Context, call func() error) error {
	drops := 0
	for tries, wait := 1, firstPause; ; tries, wait = tries+1, min(2*wait, lastPause) {
		err := call()
		if !trouble(err) || tries == s.tries {
			return err
		}
		if errors.Is(err, store.ErrDisconnected) {
			drops++
		} else {
			drops = 0
		}
		if drops > maxDrops {
			return err
		}
		if ended := pause(ctx, wait); ended != nil {
			return fmt.Errorf("%w: %w", ended, err)
		}
	}
}

// trouble returns whether it was the connection to the store that failed.
func trouble(err error) bool {
	_, network := errors.AsType[*net.OpError](err)
	return network || errors.Is(err, store.ErrDisconnected)
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
