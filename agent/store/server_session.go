package store

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// session serves one connection of a server. One goroutine reads requests, so that a
// disconnect is noticed while a request waits; a second replies to them in order; a
// third sends updates of watched keys.
type session struct {
	server *Server
	table  *table
	conn   net.Conn
	number uint64
	active atomic.Bool // has sent a request

	requests chan *request // closed by the reader
	done     chan struct{} // closed when the replying goroutine has ended
	readErr  error         // valid once requests is closed
	ready    chan struct{} // of all subscriptions

	writing       sync.Mutex
	subscriptions map[string]*subscription // by the keys that are watched; writing protects it
}

// maxWatched bounds the keys that a peer may watch on one connection.
const maxWatched = 1024

// run serves the connection until it ends, closes it, and returns once the goroutines of the
// session have ended and its subscriptions are removed. It logs an error that ended the
// connection.
func (c *session) run() {
	var others sync.WaitGroup
	others.Go(c.read)
	others.Go(c.sendUpdates)
	var err error
	for r := range c.requests {
		err = c.handle(r)
		r.charge.release()
		if err != nil {
			break
		}
	}
	if err == nil {
		err = c.readErr
	}
	if err != io.EOF && !errors.Is(err, net.ErrClosed) {
		c.server.options.Logger.Warn("store: closed a connection", "peer", c.conn.RemoteAddr(), "err", err)
	}
	close(c.done)
	c.conn.Close()
	others.Wait()
	for key, f := range c.subscriptions {
		c.table.unsubscribe(key, f)
	}
}

// read reads requests and sends them to c.requests, one ahead of the one that is being served,
// until the connection or the session ends. Then it sets readErr and closes c.requests.
func (c *session) read() {
	defer close(c.requests)
	buffered := bufio.NewReader(c.conn)
	for {
		r, err := c.next(buffered)
		if err != nil {
			c.readErr = err
			return
		}
		select {
		case c.requests <- r:
		case <-c.done:
			r.charge.release()
			c.readErr = net.ErrClosed
			return
		}
	}
}

// next reads one request. It waits without limit for the first byte, and at most
// ServerOptions.Stall for the remaining ones. The charge of the request, which the caller must
// release, is in r.charge. The error is that of decoder.request.
func (c *session) next(buffered *bufio.Reader) (*request, error) {
	if err := c.conn.SetReadDeadline(time.Time{}); err != nil {
		return nil, err
	}
	if _, err := buffered.Peek(1); err != nil {
		return nil, err
	}
	c.active.Store(true)
	if err := c.conn.SetReadDeadline(time.Now().Add(c.server.options.Stall)); err != nil {
		return nil, err
	}
	p := &charge{quota: &c.server.quota}
	d := decoder{r: buffered, limits: c.table.limits, reserve: p.reserve}
	r, err := d.request()
	if err != nil {
		p.release()
		return nil, err
	}
	r.charge = p
	return r, nil
}

// handle executes r and writes the reply. The protocol has no error replies: after an error the
// caller must close the connection.
func (c *session) handle(r *request) error {
	switch r.op {
	case opSet:
		return c.table.set(r.key, r.value)
	case opCompareAndSet:
		value, err := c.table.compareAndSet(r.key, r.expected, r.value)
		if errors.Is(err, ErrNotFound) {
			value, err = r.expected, nil // the protocol has no other reply for that
		}
		return c.reply(err, size(value), value)
	case opGet:
		value, err := c.table.get(r.key)
		return c.reply(err, size(value), value)
	case opAdd:
		n, err := c.table.add(r.key, r.delta)
		return c.replyNumber(err, n)
	case opCheck:
		all, err := c.table.exists(r.keys)
		if !all {
			return c.reply(err, []byte{replyNotReady})
		}
		return c.reply(err, []byte{replyReady})
	case opWait:
		return c.reply(c.wait(r.keys), []byte{replyReady})
	case opCount:
		return c.replyNumber(nil, int64(c.table.count()))
	case opWatch:
		return c.watch(r.key)
	default: // opDelete; the decoder knows no others
		existed, err := c.table.remove(r.key)
		if !existed {
			return c.replyNumber(err, 0)
		}
		return c.replyNumber(err, 1)
	}
}

// wait returns nil once each of keys has existed. The error is ErrClosed if the server is closed,
// that of the connection when the peer disconnects, or matches ErrProtocol if the peer sends
// another request.
func (c *session) wait(keys []string) error {
	for _, k := range keys {
		a, err := c.table.addWaiter(k)
		if err != nil {
			return err
		}
		if a == nil {
			continue
		}
		select {
		case <-a.created:
			err = c.table.closedErr()
		case r, ok := <-c.requests:
			if !ok {
				err = c.readErr
				break
			}
			r.charge.release()
			err = fmt.Errorf("%w: a request of kind %d while another one waits", ErrProtocol, r.op)
		}
		c.table.removeWaiter(k, a)
		if err != nil {
			return err
		}
	}
	return nil
}

// replyNumber writes n as one reply, or nothing if err is not nil, which it then returns.
func (c *session) replyNumber(err error, n int64) error {
	return c.reply(err, binary.LittleEndian.AppendUint64(nil, uint64(n)))
}

// reply writes parts to the peer as one reply and returns the error of that. If err is not nil it
// writes nothing and returns err. The caller must not hold c.writing.
func (c *session) reply(err error, parts ...[]byte) error {
	if err != nil {
		return err
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.write(parts...)
}

// write sends parts to the peer within ServerOptions.Stall, and returns the error of the
// connection. The caller holds c.writing. Values are sent from the table's memory: copies would
// add up if many peers did not read.
func (c *session) write(parts ...[]byte) error {
	if err := c.conn.SetWriteDeadline(time.Now().Add(c.server.options.Stall)); err != nil {
		return err
	}
	buffers := net.Buffers(parts)
	_, err := buffers.WriteTo(c.conn)
	return err
}

// size returns the length of a value as it is encoded before the value.
func size(value []byte) []byte {
	return binary.LittleEndian.AppendUint64(nil, uint64(len(value)))
}

// watch subscribes to key, unless the peer watches it already, and then confirms the request.
// Updates are sent after the confirmation. The error matches ErrLimit if the peer watches too
// many keys.
func (c *session) watch(key string) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.subscriptions[key] == nil {
		if len(c.subscriptions) == maxWatched {
			return fmt.Errorf("%w: %d keys are watched already", ErrLimit, maxWatched)
		}
		f := &subscription{ready: c.ready}
		if err := c.table.subscribe(key, f); err != nil {
			return err
		}
		c.subscriptions[key] = f
	}
	return c.write([]byte{replyWatching})
}

// sendUpdates sends the updates of watched keys to the peer until the session ends. After an
// error it closes the connection. It runs on a goroutine of its own.
func (c *session) sendUpdates() {
	for {
		select {
		case <-c.ready:
		case <-c.done:
			return
		}
		if err := c.flushUpdates(); err != nil {
			c.conn.Close() // ends the reading goroutine
			return
		}
	}
}

// flushUpdates sends the updates that wait. The error is ErrClosed or that of the connection.
func (c *session) flushUpdates() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	for key, f := range c.subscriptions {
		u, ok, err := f.receive()
		if err != nil {
			return err
		}
		if !ok || !u.existed && !u.exists { // created and deleted again
			continue
		}
		kind := byte(replyUpdated)
		switch {
		case !u.exists:
			kind = replyDeleted
		case !u.existed:
			kind = replyCreated
		}
		head := appendText([]byte{kind}, key)
		if err := c.write(head, size(u.old), u.old, size(u.now), u.now); err != nil {
			return err
		}
	}
	return nil
}
