package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// link is the connection of a client on which updates come, of all keys that it
// watches. A key that is not watched any more stays registered, because the
// protocol cannot take that back.
type link struct {
	conn   *clientConn
	done   chan struct{} // closed when nothing is read any more
	closed chan struct{} // closed by close
	shut   func()

	mu    sync.Mutex
	err   error // why it has ended
	acks  []chan struct{}
	known map[string]chan struct{} // keys asked for; the channel is closed once the server knows
	feeds map[string]map[*feed]struct{}
}

func newLink(conn *clientConn) *link {
	l := &link{
		conn:   conn,
		done:   make(chan struct{}),
		closed: make(chan struct{}),
		known:  make(map[string]chan struct{}),
		feeds:  make(map[string]map[*feed]struct{}),
	}
	l.shut = sync.OnceFunc(func() {
		close(l.closed)
		conn.Close()
	})
	go l.read()
	return l
}

// close ends all feeds, and returns when nothing runs any more.
func (l *link) close() {
	l.shut()
	<-l.done
}

// Watch implements [Store].
func (c *Client) Watch(ctx context.Context, key string) (Watcher, error) {
	w, err := c.watch(ctx, key)
	if err != nil {
		return nil, fail("watch", key, c.cause(ctx, err))
	}
	return w, nil
}

func (c *Client) watch(ctx context.Context, key string) (Watcher, error) {
	if err := c.limits.check(key); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	l, f, known, err := c.follow(ctx, userPrefix+key)
	<-c.turn
	if err != nil {
		return nil, err
	}
	w := &watcher{feed: f, key: key, leave: func() { l.leave(userPrefix+key, f) }}
	select {
	case <-known:
		return w, nil
	case <-l.done:
		err = l.cause()
	case <-ctx.Done():
		err = ctx.Err()
	}
	w.Close()
	return nil, err
}

// follow asks for a key on the link, and makes one if need be. It is called in
// turn.
func (c *Client) follow(ctx context.Context, key string) (*link, *feed, <-chan struct{}, error) {
	l, err := c.linked(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	f := newFeed()
	known, fresh, err := l.add(key, f)
	if err != nil {
		return nil, nil, nil, err
	}
	if fresh {
		r := request{op: opWatch, key: key}
		if err := l.send(ctx, r.append(nil)); err != nil {
			return nil, nil, nil, err
		}
	}
	return l, f, known, nil
}

// send ends the link if part of a request may have left, and only then.
func (l *link) send(ctx context.Context, request []byte) error {
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = l.conn.SetWriteDeadline(past)
	})
	_, err := l.conn.Write(request)
	if !stop() {
		<-interrupted
		_ = l.conn.SetWriteDeadline(time.Time{})
	}
	if err != nil {
		l.conn.Close() // the reader tells everybody
		<-l.done
		return l.cause()
	}
	return nil
}

func (c *Client) linked(ctx context.Context) (*link, error) {
	c.mu.Lock()
	l := c.link
	c.mu.Unlock()
	if l != nil && l.cause() == nil {
		return l, nil
	}
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.busy, conn)
	if c.closed {
		conn.Close()
		return nil, ErrClosed
	}
	c.link = newLink(conn)
	return c.link, nil
}

// add returns what is closed once the server knows the key, and whether it is
// still to be asked.
func (l *link) add(key string, f *feed) (known chan struct{}, fresh bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return nil, false, l.err
	}
	if l.feeds[key] == nil {
		l.feeds[key] = make(map[*feed]struct{})
	}
	l.feeds[key][f] = struct{}{}
	if known = l.known[key]; known != nil {
		return known, false, nil
	}
	known = make(chan struct{})
	l.known[key] = known
	l.acks = append(l.acks, known)
	return known, true, nil
}

func (l *link) leave(key string, f *feed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.feeds[key], f)
	if len(l.feeds[key]) == 0 {
		delete(l.feeds, key)
	}
}

func (l *link) cause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// read brings updates to their feeds until the connection ends.
func (l *link) read() {
	defer close(l.done)
	var err error
	for err == nil {
		err = l.hear(l.conn.from)
	}
	select {
	case <-l.closed:
		err = ErrClosed
	default:
		err = lost(err)
	}
	l.shut()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
	for _, feeds := range l.feeds {
		for f := range feeds {
			f.end(err)
		}
	}
}

// hear reads one message: registrations are confirmed in their order.
func (l *link) hear(d *decoder) error {
	kind, err := d.r.ReadByte()
	if err != nil {
		return err
	}
	if kind == replyWatching {
		return l.confirm()
	}
	if kind > replyDeleted {
		return fmt.Errorf("%w: an update of kind %d", ErrProtocol, kind)
	}
	key, err := d.key()
	if err != nil {
		return cut(err)
	}
	_, err = d.value()
	now, err2 := d.value()
	if err := errors.Join(err, err2); err != nil {
		return cut(err)
	}
	u := update{now: now, has: kind != replyDeleted}
	if !u.has {
		u.now = nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for f := range l.feeds[key] {
		f.push(u)
	}
	return nil
}

func (l *link) confirm() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.acks) == 0 {
		return fmt.Errorf("%w: a confirmation of nothing", ErrProtocol)
	}
	close(l.acks[0])
	l.acks = l.acks[1:]
	return nil
}
