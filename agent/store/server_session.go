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
// session have ended and its subscriptions are removed. It logs the error with which reading or
// handling a request failed, unless that is io.EOF or matches net.ErrClosed.
func (s *session) run() {
	var others sync.WaitGroup
	others.Go(s.read)
	others.Go(s.sendUpdates)
	var err error
	for r := range s.requests {
		err = s.handle(r)
		r.charge.release()
		if err != nil {
			break
		}
	}
	if err == nil {
		err = s.readErr
	}
	if err != io.EOF && !errors.Is(err, net.ErrClosed) {
		s.server.options.Logger.Warn("store: closed a connection", "peer", s.conn.RemoteAddr(), "err", err)
	}
	close(s.done)
	s.conn.Close()
	others.Wait()
	for key, sub := range s.subscriptions {
		s.table.unsubscribe(key, sub)
	}
}

// read reads requests from the connection and sends them to s.requests, until the connection or the
// session ends. It reads one request while the one before is being served. When it ends it sets
// s.readErr to the reason and closes s.requests. It runs on a goroutine of its own.
func (s *session) read() {
	defer close(s.requests)
	buffered := bufio.NewReader(s.conn)
	for {
		r, err := s.next(buffered)
		if err != nil {
			s.readErr = err
			return
		}
		select {
		case s.requests <- r:
		case <-s.done:
			r.charge.release()
			s.readErr = net.ErrClosed
			return
		}
	}
}

// next reads one request from buffered, which reads from the connection. It waits without limit for
// the first byte, and at most ServerOptions.Stall for the remaining ones. The charge of the
// request, which the caller must release, is in its field charge. The error matches ErrProtocol,
// ErrDialect (a client of PyTorch 2) or ErrLimit, or is that of the connection; io.EOF means that
// the peer disconnected between requests.
func (s *session) next(buffered *bufio.Reader) (*request, error) {
	if err := s.conn.SetReadDeadline(time.Time{}); err != nil {
		return nil, err
	}
	if _, err := buffered.Peek(1); err != nil {
		return nil, err
	}
	s.active.Store(true)
	if err := s.conn.SetReadDeadline(time.Now().Add(s.server.options.Stall)); err != nil {
		return nil, err
	}
	p := &charge{quota: &s.server.quota}
	d := decoder{r: buffered, limits: s.table.limits, reserve: p.reserve}
	r, err := d.request()
	if err != nil {
		p.release()
		return nil, err
	}
	r.charge = p
	return r, nil
}

// handle executes r and writes the reply; a set request has none. A wait request blocks until its
// keys exist. The error is that of the operation or of the connection. The protocol has no error
// replies: after an error the caller must close the connection.
func (s *session) handle(r *request) error {
	switch r.op {
	case opSet:
		return s.table.set(r.key, r.value)
	case opCompareAndSet:
		value, err := s.table.compareAndSet(r.key, r.expected, r.value)
		if errors.Is(err, ErrNotFound) {
			value, err = r.expected, nil // the protocol has no other reply for that
		}
		return s.reply(err, size(value), value)
	case opGet:
		value, err := s.table.get(r.key)
		return s.reply(err, size(value), value)
	case opAdd:
		n, err := s.table.add(r.key, r.delta)
		return s.replyNumber(err, n)
	case opCheck:
		all, err := s.table.exists(r.keys)
		if !all {
			return s.reply(err, []byte{replyNotReady})
		}
		return s.reply(err, []byte{replyReady})
	case opWait:
		return s.reply(s.wait(r.keys), []byte{replyReady})
	case opCount:
		return s.replyNumber(nil, int64(s.table.count()))
	case opWatch:
		return s.watch(r.key)
	default: // opDelete; the decoder knows no others
		existed, err := s.table.remove(r.key)
		if !existed {
			return s.replyNumber(err, 0)
		}
		return s.replyNumber(err, 1)
	}
}

// wait blocks until each of keys has existed at some time, and returns nil. The error is ErrClosed
// if the server is closed, that of the connection if the peer disconnects, or matches ErrProtocol
// if the peer sends another request.
func (s *session) wait(keys []string) error {
	for _, k := range keys {
		w, err := s.table.addWaiter(k)
		if err != nil {
			return err
		}
		if w == nil {
			continue
		}
		select {
		case <-w.created:
			err = s.table.closedErr()
		case r, ok := <-s.requests:
			if !ok {
				err = s.readErr
				break
			}
			r.charge.release()
			err = fmt.Errorf("%w: a request of kind %d while another one waits", ErrProtocol, r.op)
		}
		s.table.removeWaiter(k, w)
		if err != nil {
			return err
		}
	}
	return nil
}

// replyNumber writes n, encoded in 8 bytes, to the peer as one reply. If err is not nil it writes
// nothing and returns err. Otherwise it returns the error of writing.
func (s *session) replyNumber(err error, n int64) error {
	return s.reply(err, binary.LittleEndian.AppendUint64(nil, uint64(n)))
}

// reply writes parts, one after the other, to the peer as one reply. If err is not nil it writes
// nothing and returns err. Otherwise it returns the error of writing. The caller must not hold
// s.writing.
func (s *session) reply(err error, parts ...[]byte) error {
	if err != nil {
		return err
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	return s.write(parts...)
}

// write sends parts, one after the other, to the peer within ServerOptions.Stall, and returns the
// error of the connection. The caller holds s.writing. Values are sent from the table's memory
// without a copy: copies would add up if many peers did not read.
func (s *session) write(parts ...[]byte) error {
	if err := s.conn.SetWriteDeadline(time.Now().Add(s.server.options.Stall)); err != nil {
		return err
	}
	buffers := net.Buffers(parts)
	_, err := buffers.WriteTo(s.conn)
	return err
}

// size returns the length of value in 8 bytes, little endian, as it precedes the value in a
// message.
func size(value []byte) []byte {
	return binary.LittleEndian.AppendUint64(nil, uint64(len(value)))
}

// watch subscribes to key, unless the peer watches it already, and then sends the confirmation to
// the peer. Updates of a new subscription are sent after the confirmation. The error matches
// ErrLimit if the peer watches maxWatched other keys already, is ErrClosed if the server is closed,
// or is that of the connection. The caller must not hold s.writing.
func (s *session) watch(key string) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.subscriptions[key] == nil {
		if len(s.subscriptions) == maxWatched {
			return fmt.Errorf("%w: %d keys are watched already", ErrLimit, maxWatched)
		}
		sub := &subscription{ready: s.ready}
		if err := s.table.subscribe(key, sub); err != nil {
			return err
		}
		s.subscriptions[key] = sub
	}
	return s.write([]byte{replyWatching})
}

// sendUpdates sends the updates of watched keys to the peer as they come, and returns when the
// session ends. After an error it closes the connection and returns. It runs on a goroutine of its
// own.
func (s *session) sendUpdates() {
	for {
		select {
		case <-s.ready:
		case <-s.done:
			return
		}
		if err := s.flushUpdates(); err != nil {
			s.conn.Close() // ends the reading goroutine
			return
		}
	}
}

// flushUpdates sends to the peer the pending update of each watched key that has one. It skips a
// key that was created and deleted since the last update. The error is ErrClosed if the server is
// closed, or that of the connection. It holds s.writing while it sends.
func (s *session) flushUpdates() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	for key, sub := range s.subscriptions {
		u, ok, err := sub.receive()
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
		if err := s.write(head, size(u.old), u.old, size(u.now), u.now); err != nil {
			return err
		}
	}
	return nil
}
