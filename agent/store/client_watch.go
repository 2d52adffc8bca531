package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// watchConn is the connection on which a client receives the updates of all keys
// that it watches. A key whose last watcher was closed stays registered at the
// server, because the protocol has no message that removes it.
type watchConn struct {
	conn      *clientConn
	done      chan struct{} // closed when the reader has ended
	closed    chan struct{} // closed by closeOnce
	closeOnce func()        // closes the connection; the reader then ends all subscriptions with ErrClosed

	mu            sync.Mutex
	err           error                    // why the connection has ended
	acks          []chan struct{}          // of registrations under way, in the order of their requests
	registered    map[string]chan struct{} // by key; closed once the server has confirmed it
	subscriptions map[string]map[*subscription]struct{}
}

// newWatchConn returns a watchConn on conn, which it owns, and starts its reader.
func newWatchConn(conn *clientConn) *watchConn {
	l := &watchConn{
		conn:          conn,
		done:          make(chan struct{}),
		closed:        make(chan struct{}),
		registered:    make(map[string]chan struct{}),
		subscriptions: make(map[string]map[*subscription]struct{}),
	}
	l.closeOnce = sync.OnceFunc(func() {
		close(l.closed)
		conn.Close()
	})
	go l.read()
	return l
}

// Watch implements [Store].
func (c *Client) Watch(ctx context.Context, key string) (Watcher, error) {
	w, err := c.watch(ctx, key)
	if err != nil {
		return nil, fail("watch", key, c.cause(ctx, err))
	}
	return w, nil
}

// watch returns a Watcher once the server has confirmed the key.
func (c *Client) watch(ctx context.Context, key string) (Watcher, error) {
	if err := c.limits.check(key); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case c.sem <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	l, f, registered, err := c.subscribe(ctx, userPrefix+key)
	<-c.sem
	if err != nil {
		return nil, err
	}
	w := &watcher{subscription: f, key: key, unsubscribe: func() { l.unsubscribe(userPrefix+key, f) }}
	select {
	case <-registered:
		return w, nil
	case <-l.done:
		err = l.cause()
	case <-ctx.Done():
		err = ctx.Err()
	}
	w.Close()
	return nil, err
}

// subscribe adds a subscription to a key, with its userPrefix, on the connection for updates,
// which it opens if there is none, and requests updates of the key if the server does not send
// them yet. It returns the connection, the subscription, and a channel that is closed once the
// server has confirmed the key. The caller holds c.sem.
func (c *Client) subscribe(ctx context.Context, key string) (*watchConn, *subscription, <-chan struct{}, error) {
	l, err := c.connectWatch(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	f := newSubscription()
	registered, fresh, err := l.add(key, f)
	if err != nil {
		return nil, nil, nil, err
	}
	if fresh {
		r := request{op: opWatch, key: key}
		if err := l.send(ctx, r.append(nil)); err != nil {
			return nil, nil, nil, err
		}
	}
	return l, f, registered, nil
}

// send writes a request. If the write fails or ctx ends during it, part of the request may have
// been sent: send then closes the connection, waits for the reader, and returns why the
// connection ended. The caller holds sem of the client.
func (l *watchConn) send(ctx context.Context, request []byte) error {
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = l.conn.SetWriteDeadline(pastDeadline)
	})
	_, err := l.conn.Write(request)
	if !stop() {
		<-interrupted
		_ = l.conn.SetWriteDeadline(time.Time{})
	}
	if err != nil {
		l.conn.Close() // the reader then ends all subscriptions
		<-l.done
		return l.cause()
	}
	return nil
}

// connectWatch returns the connection for updates, and opens one if there is none or the last one
// has ended. The error is ErrClosed or that of dialling. The caller holds c.sem.
func (c *Client) connectWatch(ctx context.Context) (*watchConn, error) {
	c.mu.Lock()
	l := c.watchConn
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
	c.watchConn = newWatchConn(conn)
	return c.watchConn, nil
}

// add adds f to the subscriptions of key. It returns the channel that is closed once the server
// has confirmed the key; fresh reports that the caller must still request updates of the key. The
// error is why the connection has ended.
func (l *watchConn) add(key string, f *subscription) (registered chan struct{}, fresh bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return nil, false, l.err
	}
	if l.subscriptions[key] == nil {
		l.subscriptions[key] = make(map[*subscription]struct{})
	}
	l.subscriptions[key][f] = struct{}{}
	if registered = l.registered[key]; registered != nil {
		return registered, false, nil
	}
	registered = make(chan struct{})
	l.registered[key] = registered
	l.acks = append(l.acks, registered)
	return registered, true, nil
}

// unsubscribe removes f from the subscriptions of key, which stays registered at the server.
func (l *watchConn) unsubscribe(key string, f *subscription) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.subscriptions[key], f)
	if len(l.subscriptions[key]) == 0 {
		delete(l.subscriptions, key)
	}
}

// cause returns why the connection has ended, nil while it has not.
func (l *watchConn) cause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// read passes updates to their subscriptions until the connection ends, and then ends all
// subscriptions with the reason: ErrClosed after closeOnce, ErrDisconnected, or that of an invalid
// message. It runs on a goroutine of its own.
func (l *watchConn) read() {
	defer close(l.done)
	var err error
	for err == nil {
		err = l.readMessage(l.conn.from)
	}
	select {
	case <-l.closed:
		err = ErrClosed
	default:
		err = connectionError(err)
	}
	l.closeOnce()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
	for _, subscriptions := range l.subscriptions {
		for f := range subscriptions {
			f.end(err)
		}
	}
}

// readMessage reads one message from d and handles it: an update, which it passes to the
// subscriptions of its key, or the confirmation of the oldest registration under way. The error
// matches ErrProtocol or ErrLimit, or is that of the connection.
func (l *watchConn) readMessage(d *decoder) error {
	kind, err := d.r.ReadByte()
	if err != nil {
		return err
	}
	if kind == replyWatching {
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.acks) == 0 {
			return fmt.Errorf("%w: a confirmation without a request", ErrProtocol)
		}
		close(l.acks[0])
		l.acks = l.acks[1:]
		return nil
	}
	if kind > replyDeleted {
		return fmt.Errorf("%w: an update of kind %d", ErrProtocol, kind)
	}
	key, err := d.key()
	if err != nil {
		return unexpectedEOF(err)
	}
	_, err = d.value()
	now, err2 := d.value()
	if err := errors.Join(err, err2); err != nil {
		return unexpectedEOF(err)
	}
	u := update{now: now, exists: kind != replyDeleted}
	if !u.exists {
		u.now = nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for f := range l.subscriptions[key] {
		f.push(u)
	}
	return nil
}
