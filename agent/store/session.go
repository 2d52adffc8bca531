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

// session is one connection to a server. One goroutine reads requests, so that
// it hears when the peer goes while a request waits; another one answers them in
// order; a third sends updates, if keys are watched.
type session struct {
	server *Server
	table  *table
	conn   net.Conn
	number uint64
	spoke  atomic.Bool

	requests chan *request // closed by the reader
	done     chan struct{} // closed when nobody answers any more
	readErr  error         // valid once requests is closed
	ready    chan struct{} // of all feeds

	writing sync.Mutex
	feeds   map[string]*feed // by the keys that are watched; writing protects it
}

// maxWatched is how many keys a peer may watch on one connection.
const maxWatched = 1024

func newSession(s *Server, conn net.Conn, number uint64) *session {
	return &session{
		server:   s,
		table:    s.table,
		conn:     conn,
		number:   number,
		requests: make(chan *request),
		done:     make(chan struct{}),
		ready:    newReady(),
		feeds:    make(map[string]*feed),
	}
}

// run serves the connection until it ends, and closes it.
func (c *session) run() {
	var others sync.WaitGroup
	others.Go(c.read)
	others.Go(c.tell)
	if err := c.answerAll(); err != io.EOF && !errors.Is(err, net.ErrClosed) {
		c.server.options.Logger.Warn("store: closed a connection", "peer", c.conn.RemoteAddr(), "err", err)
	}
	close(c.done)
	c.conn.Close()
	others.Wait()
	for key, f := range c.feeds {
		c.table.leave(key, f)
	}
}

// read reads one request ahead of the one that is answered.
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
			r.purse.giveBack()
			c.readErr = net.ErrClosed
			return
		}
	}
}

// next waits for a request as long as it takes, and for the rest of one that has
// begun only for a while.
func (c *session) next(from *bufio.Reader) (*request, error) {
	if err := c.conn.SetReadDeadline(time.Time{}); err != nil {
		return nil, err
	}
	if _, err := from.Peek(1); err != nil {
		return nil, err
	}
	c.spoke.Store(true)
	if err := c.conn.SetReadDeadline(time.Now().Add(c.server.options.Stall)); err != nil {
		return nil, err
	}
	p := &purse{fund: &c.server.fund}
	d := decoder{r: from, limits: c.table.limits, reserve: p.take}
	r, err := d.request()
	if err != nil {
		p.giveBack()
		return nil, err
	}
	r.purse = p
	return r, nil
}

func (c *session) answerAll() error {
	for r := range c.requests {
		err := c.answer(r)
		r.purse.giveBack()
		if err != nil {
			return err
		}
	}
	return c.readErr
}

// answer does what r asks. The protocol has no errors: what cannot be done ends
// the connection.
func (c *session) answer(r *request) error {
	switch r.op {
	case opSet:
		return c.table.set(r.key, r.value)
	case opCompareAndSet:
		return c.compareAndSet(r)
	case opGet:
		value, err := c.table.get(r.key)
		return c.reply(err, size(value), value)
	case opAdd:
		n, err := c.table.add(r.key, r.delta)
		return c.replyNumber(err, n)
	case opCheck:
		all, err := c.table.has(r.keys)
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

// compareAndSet answers with the expected value where there is no key: the
// protocol has nothing better.
func (c *session) compareAndSet(r *request) error {
	value, err := c.table.compareAndSet(r.key, r.expected, r.value)
	if errors.Is(err, ErrNotFound) {
		value, err = r.expected, nil
	}
	return c.reply(err, size(value), value)
}

// wait waits until all keys have come, or the peer has gone.
func (c *session) wait(keys []string) error {
	for _, k := range keys {
		if err := c.waitFor(k); err != nil {
			return err
		}
	}
	return nil
}

func (c *session) waitFor(key string) error {
	a, err := c.table.await(key)
	if err != nil || a == nil {
		return err
	}
	defer c.table.forgo(key, a)
	select {
	case <-a.came:
		return c.table.closedErr()
	case r, ok := <-c.requests:
		if !ok {
			return c.readErr
		}
		r.purse.giveBack()
		return fmt.Errorf("%w: a request of kind %d while another one waits", ErrProtocol, r.op)
	}
}

func (c *session) replyNumber(err error, n int64) error {
	return c.reply(err, binary.LittleEndian.AppendUint64(nil, uint64(n)))
}

// reply writes, unless there was an error.
func (c *session) reply(err error, parts ...[]byte) error {
	if err != nil {
		return err
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.write(parts...)
}

// write is called with the lock held. Values go out from where the table has them:
// peers that do not read would otherwise cost a copy each.
func (c *session) write(parts ...[]byte) error {
	if err := c.conn.SetWriteDeadline(time.Now().Add(c.server.options.Stall)); err != nil {
		return err
	}
	buffers := net.Buffers(parts)
	_, err := buffers.WriteTo(c.conn)
	return err
}

// size is what precedes a value.
func size(value []byte) []byte {
	return binary.LittleEndian.AppendUint64(nil, uint64(len(value)))
}

// watch begins to follow key before it says so, and lets updates go out after.
func (c *session) watch(key string) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.feeds[key] == nil {
		if len(c.feeds) == maxWatched {
			return fmt.Errorf("%w: %d keys are watched already", ErrLimit, maxWatched)
		}
		f := &feed{ready: c.ready}
		if err := c.table.follow(key, f); err != nil {
			return err
		}
		c.feeds[key] = f
	}
	return c.write([]byte{replyWatching})
}

// tell sends updates until nobody answers any more.
func (c *session) tell() {
	for {
		select {
		case <-c.ready:
		case <-c.done:
			return
		}
		if err := c.tellAll(); err != nil {
			c.conn.Close() // the reader hears that
			return
		}
	}
}

func (c *session) tellAll() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	for key, f := range c.feeds {
		u, ok, err := f.take()
		if err != nil {
			return err
		}
		if kind, some := u.kind(); ok && some {
			head := appendText([]byte{kind}, key)
			if err := c.write(head, size(u.old), u.old, size(u.now), u.now); err != nil {
				return err
			}
		}
	}
	return nil
}

// kind is the update on the wire. A key that came and went is none.
func (u update) kind() (kind byte, some bool) {
	switch {
	case u.had && u.has:
		return replyUpdated, true
	case u.has:
		return replyCreated, true
	}
	return replyDeleted, u.had
}
