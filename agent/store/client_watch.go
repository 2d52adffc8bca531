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

// newWatchConn returns a watchConn that owns conn, and starts the goroutine that reads updates from
// conn. The goroutine ends when conn is closed or fails.
func newWatchConn(conn *clientConn) *watchConn {
	w := &watchConn{
		conn:          conn,
		done:          make(chan struct{}),
		closed:        make(chan struct{}),
		registered:    make(map[string]chan struct{}),
		subscriptions: make(map[string]map[*subscription]struct{}),
	}
	w.closeOnce = sync.OnceFunc(func() {
		close(w.closed)
		conn.Close()
	})
	go w.read()
	return w
}

// Watch returns a Watcher of the changes of key that are made after the call. It blocks until the
// server has confirmed the registration. ctx bounds the call only. The caller closes the Watcher.
// The error is an [*Error].
func (c *Client) Watch(ctx context.Context, key string) (Watcher, error) {
	w, err := c.watch(ctx, key)
	if err != nil {
		return nil, fail("watch", key, c.cause(ctx, err))
	}
	return w, nil
}

// watch returns a Watcher of key once the server has confirmed the registration. The error matches
// ErrLimit if the key is too long, or is ErrClosed if the client is closed. Otherwise the error is
// that of ctx, that of dialling, or the reason for which the connection for updates has ended.
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
	l, s, registered, err := c.subscribe(ctx, userPrefix+key)
	<-c.sem
	if err != nil {
		return nil, err
	}
	w := &watcher{subscription: s, key: key, unsubscribe: func() { l.unsubscribe(userPrefix+key, s) }}
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

// subscribe adds a subscription to key, which begins with userPrefix, on the client's connection
// for updates. It opens that connection if there is none or it has ended. If the client has not
// registered key on this connection before, it sends the request to do so. It returns the
// connection, the subscription, and a channel that is closed once the server has confirmed the key.
// The error is ErrClosed, that of dialling, or the reason for which the connection has ended. The
// caller holds c.sem.
func (c *Client) subscribe(ctx context.Context, key string) (*watchConn, *subscription, <-chan struct{}, error) {
	w, err := c.connectWatch(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	s := newSubscription()
	registered, fresh, err := w.add(key, s)
	if err != nil {
		return nil, nil, nil, err
	}
	if fresh {
		r := request{op: opWatch, key: key}
		if err := w.send(ctx, r.append(nil)); err != nil {
			return nil, nil, nil, err
		}
	}
	return w, s, registered, nil
}

// send writes a request to the server. If the write fails, for example because ctx ends, part of
// the request may have been sent. Then send closes the connection, waits until the goroutine that
// reads from it has ended, and returns the reason for which the connection has ended. The caller
// holds sem of the client.
func (w *watchConn) send(ctx context.Context, request []byte) error {
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = w.conn.SetWriteDeadline(pastDeadline)
	})
	_, err := w.conn.Write(request)
	if !stop() {
		<-interrupted
		_ = w.conn.SetWriteDeadline(time.Time{})
	}
	if err != nil {
		w.conn.Close() // the reader then ends all subscriptions
		<-w.done
		return w.cause()
	}
	return nil
}

// connectWatch returns the client's connection for updates of watched keys. It opens a new one if
// there is none or the present one has ended. The error is ErrClosed or that of dialling. The
// caller holds c.sem.
func (c *Client) connectWatch(ctx context.Context) (*watchConn, error) {
	c.mu.Lock()
	w := c.watchConn
	c.mu.Unlock()
	if w != nil && w.cause() == nil {
		return w, nil
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

// add adds s to the subscriptions of key, and returns a channel that is closed once the server has
// confirmed key. If fresh is true the caller must still send the request that registers key. The
// error is the reason for which the connection has ended; s is then not added.
func (w *watchConn) add(key string, s *subscription) (registered chan struct{}, fresh bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return nil, false, w.err
	}
	if w.subscriptions[key] == nil {
		w.subscriptions[key] = make(map[*subscription]struct{})
	}
	w.subscriptions[key][s] = struct{}{}
	if registered = w.registered[key]; registered != nil {
		return registered, false, nil
	}
	registered = make(chan struct{})
	w.registered[key] = registered
	w.acks = append(w.acks, registered)
	return registered, true, nil
}

// unsubscribe removes s from the subscriptions of key, if it is one of them. key stays registered
// at the server; while it has no subscription, readMessage drops its updates.
func (w *watchConn) unsubscribe(key string, s *subscription) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.subscriptions[key], s)
	if len(w.subscriptions[key]) == 0 {
		delete(w.subscriptions, key)
	}
}

// cause returns the reason for which the connection has ended, or nil if its reader has not ended
// yet.
func (w *watchConn) cause() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// read passes the server's updates to their subscriptions until the connection ends. Then it closes
// the connection, and ends all subscriptions with the reason: ErrClosed after closeOnce was called,
// or else what connectionError returns for the error of readMessage. It runs on a goroutine of its
// own, and closes w.done when it returns.
func (w *watchConn) read() {
	defer close(w.done)
	var err error
	for err == nil {
		err = w.readMessage(w.conn.from)
	}
	select {
	case <-w.closed:
		err = ErrClosed
	default:
		err = connectionError(err)
	}
	w.closeOnce()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
	for _, subscriptions := range w.subscriptions {
		for s := range subscriptions {
			s.end(err)
		}
	}
}

// readMessage reads one message from d and handles it. An update goes to all subscriptions of its
// key. A confirmation closes the channel of the oldest registration that the server has not
// confirmed. The error matches ErrProtocol or ErrLimit, or is that of the connection.
func (w *watchConn) readMessage(d *decoder) error {
	kind, err := d.r.ReadByte()
	if err != nil {
		return err
	}
	if kind == replyWatching {
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.acks) == 0 {
			return fmt.Errorf("%w: a confirmation without a request", ErrProtocol)
		}
		close(w.acks[0])
		w.acks = w.acks[1:]
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
	w.mu.Lock()
	defer w.mu.Unlock()
	for s := range w.subscriptions[key] {
		s.push(u)
	}
	return nil
}
