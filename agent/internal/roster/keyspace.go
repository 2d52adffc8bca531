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

	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
)

// keySpace is the keys of one group on the store. Its methods repeat a request to the store while
// the connection fails, until the context ends or maxTries is reached, see retry. Such a request
// must therefore have the same effect when it is made twice.
type keySpace struct {
	base     store.Store
	prefix   string
	maxTries int // bounds the attempts of one call while connections fail; 0 is no limit
}

func newKeySpace(s store.Store, group string) *keySpace {
	return &keySpace{base: s, prefix: "roster/" + url.PathEscape(group) + "/"} // an unescaped slash would mix the keys of groups
}

func (s *keySpace) stateKey() string { return s.prefix + "gate" }

func (s *keySpace) key(gen uint64, parts string) string {
	return s.prefix + strconv.FormatUint(gen, 10) + "/" + parts
}

func (s *keySpace) rankKey(gen uint64, rank int) string {
	return s.key(gen, "rank/"+strconv.Itoa(rank))
}
func (s *keySpace) nameKey(gen uint64, name string) string { return s.key(gen, "name/"+name) }
func (s *keySpace) listKey(gen uint64, writer Incarnation) string {
	return s.key(gen, fmt.Sprintf("list/%x", writer[:]))
}
func (s *keySpace) leftKey(gen uint64, rank int) string {
	return s.key(gen, "gone/"+strconv.Itoa(rank))
}
func (s *keySpace) ackKey(gen uint64, ack string) string { return s.key(gen, "told/"+ack) }
func (s *keySpace) decidedKey(gen uint64) string         { return s.key(gen, "decided") }
func (s *keySpace) endedKey(gen uint64) string           { return s.key(gen, "over") }

// get returns the value of key. It returns nil and no error if the key does not exist or its value
// is empty. While connections to the store fail it tries again, with growing delays. The error is
// that of the store or ctx.
func (s *keySpace) get(ctx context.Context, key string) (value []byte, err error) {
	err = s.retry(ctx, func() error {
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

func (s *keySpace) set(ctx context.Context, key string, value []byte) error {
	return s.retry(ctx, func() error { return s.base.Set(ctx, key, value) })
}

func (s *keySpace) deleteKey(ctx context.Context, key string) error {
	return s.retry(ctx, func() error {
		_, err := s.base.Delete(ctx, key)
		return err
	})
}

// compareAndSwap writes desired if the value of key is expected, where nil stands for a key that
// does not exist or is empty. It returns the value after the call, or nil if the key does not exist
// and expected is not empty: so the swap was made if the result equals desired. A nil desired
// leaves an empty value, which get reports as nil. If the reply of a first attempt was lost, a
// second attempt finds desired and returns it too; so no other member may write the same value. The
// error is that of the store or ctx.
func (s *keySpace) compareAndSwap(ctx context.Context, key string, expected, desired []byte) (now []byte, err error) {
	err = s.retry(ctx, func() error {
		now, err = s.base.CompareAndSet(ctx, key, expected, desired)
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	return now, err
}

// replaceState stores the group's new state, the argument to, if the store still has the state
// from. It reports whether it did. It sets to.raw to the encoding of the new state in any case. It
// returns false without an error if another member has changed the state since from was read. The
// error is that of the store or ctx; the new state may then have been stored or not.
func (s *keySpace) replaceState(ctx context.Context, from, to *groupState) (bool, error) {
	to.raw = to.encode()
	now, err := s.compareAndSwap(ctx, s.stateKey(), from.raw, to.raw)
	return err == nil && bytes.Equal(now, to.raw), err
}

// Bounds of retry. A store that is being restarted comes back. One that accepts connections
// and ends maxDisconnects of them in a row does not want the request.
const (
	firstBackoff   = 10 * time.Millisecond
	lastBackoff    = time.Second
	maxDisconnects = 12
)

// retry calls call and returns the result, unless call fails because the connection to the store
// fails: then it calls call again, with growing delays. It makes at most s.maxTries calls (0 stands
// for no limit), and stops once the store has closed more than maxDisconnects connections in a row;
// then it returns the error of the last call. If ctx ends during a delay, the error matches that of
// ctx and that of the last call.
func (s *keySpace) retry(ctx context.Context, call func() error) error {
	drops := 0
	for tries, wait := 1, firstBackoff; ; tries, wait = tries+1, min(2*wait, lastBackoff) {
		err := call()
		if !isConnError(err) || tries == s.maxTries {
			return err
		}
		if errors.Is(err, store.ErrDisconnected) {
			drops++
		} else {
			drops = 0
		}
		if drops > maxDisconnects {
			return err
		}
		if ended := sleep(ctx, wait); ended != nil {
			return fmt.Errorf("%w: %w", ended, err)
		}
	}
}

// isConnError reports whether err is a failure of the connection to the store: an *net.OpError or
// store.ErrDisconnected.
func isConnError(err error) bool {
	_, network := errors.AsType[*net.OpError](err)
	return network || errors.Is(err, store.ErrDisconnected)
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctxerr.Wrap(ctx.Err())
	}
}

// notification is a key that is set when members should read the state again. It is a plain
// key: PyTorch's server does not wake those that wait for a key written by compare-and-set.
// The member that should set it may have died, and the store may lose it, so waits are short.
type notification struct {
	store    store.Store
	key      string
	received bool
	interval time.Duration
}

// The first three intervals end just after a second, when a member that still waits reports that.
const (
	firstInterval = 145 * time.Millisecond
	lastInterval  = 2 * time.Second
)

func newNotification(s *keySpace, key string) *notification {
	return &notification{s.base, key, false, firstInterval}
}

// wait blocks until the key b.key exists on the store, or for an interval, and returns nil. The
// interval grows from call to call, up to lastInterval. Once a call has found the key, later calls
// only sleep for the interval. If the connection to the store fails, wait sleeps for firstBackoff
// and returns nil. The error is that of ctx, or another one of the store.
func (b *notification) wait(ctx context.Context) error {
	d := b.interval
	b.interval = min(2*b.interval, lastInterval)
	if b.received {
		return sleep(ctx, d)
	}
	short, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	err := b.store.Wait(short, b.key)
	b.received = err == nil
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return err
	case isConnError(err):
		return sleep(ctx, firstBackoff) // the caller's next read waits until the store is back
	case short.Err() != nil, errors.Is(err, context.DeadlineExceeded): // a store may report the timeout before the context does
		return nil
	}
	return err
}

// sweep deletes the keys of a static generation, one group of several under the same name, that has
// ended or failed, and the notification keys of the generation before. g is the complete or the
// failed state of that generation: in a complete one, sweep finds the names that members claimed in
// the member list, in a failed one in the claims of the ranks. sweep stops at the first key that it
// cannot delete: keys that remain do no harm.
func (v *groupAccess) sweep(ctx context.Context, g *groupState) {
	keys := []string{v.endedKey(g.gen - 1), v.decidedKey(g.gen - 1), v.ackKey(g.gen, dynamicAck)}
	if g.phase == complete {
		list := v.listKey(g.gen, g.listWriter)
		value, err := v.get(ctx, list)
		if err == nil {
			members, _ := decodeList(value, g.world) // a damaged list has no names
			for _, m := range members {
				keys = append(keys, v.nameKey(g.gen, m.Name))
			}
		}
		keys = append(keys, list)
	} else {
		for r := range g.world {
			value, err := v.get(ctx, v.rankKey(g.gen, r))
			if err != nil {
				break
			}
			if m, err := decodeEntry(value, r); err == nil {
				keys = append(keys, v.nameKey(g.gen, m.Name))
			}
		}
	}
	for r := range g.world {
		keys = append(keys, v.rankKey(g.gen, r), v.leftKey(g.gen, r), v.ackKey(g.gen, rankAck(r)))
	}
	for _, key := range keys {
		if v.deleteKey(ctx, key) != nil {
			return
		}
	}
}
