package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/errtext"
)

// ServerOptions configures a [Server]. A zero field stands for its default.
type ServerOptions struct {
	Limits Limits

	// MaxConns bounds the connections of the server; default 4,096. A PyTorch process
	// uses two; a Client uses one or two, and one more for each Wait under way. At
	// the bound, a new connection replaces the oldest that has never sent a request;
	// it is rejected if all have.
	MaxConns int

	// RequestBytes bounds the memory of requests that have partly arrived, on all
	// connections together; default 64 MiB.
	RequestBytes int

	// Stall bounds the time in which a peer must send a request once its first byte
	// has arrived, or read a reply; after it the connection is closed; default 30 s.
	// An idle connection stays open as long as the peer's machine answers.
	Stall time.Duration

	// Logger receives a line for each connection that was closed because of an error.
	// Nil stands for no logging.
	Logger *slog.Logger
}

// orDefaults returns o with defaults for the fields that are 0, except those of o.Limits. A nil
// Logger is replaced by one that discards its messages.
func (o ServerOptions) orDefaults() ServerOptions {
	o.MaxConns = cmp.Or(o.MaxConns, 4096)
	o.RequestBytes = cmp.Or(o.RequestBytes, 64<<20)
	o.Stall = cmp.Or(o.Stall, 30*time.Second)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Server serves a store over TCP. There is no authentication: every process that can
// connect may read and change the store.
type Server struct {
	options  ServerOptions
	table    *table
	local    *Memory // a handle on table
	quota    memoryQuota
	listener net.Listener
	done     chan struct{} // closed by Close
	closing  sync.Once
	running  sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	number   uint64 // number of connections that were admitted so far
	sessions map[*session]struct{}
}

// keepAlive detects within about a minute that a peer's machine is unreachable.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 3}

// Serve starts a server with an empty store that listens on addr (host:port); port 0 picks a free
// one. ctx bounds the call, not the life of the server. The caller must close the server. The
// error, an [*Error], wraps that of listening.
func Serve(ctx context.Context, addr string, o ServerOptions) (*Server, error) {
	config := net.ListenConfig{KeepAliveConfig: keepAlive}
	l, err := config.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fail("serve", addr, errtext.New("cannot listen: "+errtext.OfNetwork(err, addr), err))
	}
	s := &Server{
		options:  o.orDefaults(),
		table:    newTable(o.Limits),
		listener: l,
		done:     make(chan struct{}),
		sessions: make(map[*session]struct{}),
	}
	s.local = &Memory{s.table}
	s.quota.limit = int64(s.options.RequestBytes)
	s.running.Go(s.accept)
	return s, nil
}

// Addr returns the address (host:port) at which the server listens.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Store returns a handle on the served store that does not use the network. It sees the same keys
// as a [Client]. Closing the handle ends only the calls made through it. Closing the server makes
// the handle's calls fail with [ErrClosed].
func (s *Server) Store() Store {
	return newView(s.local, userPrefix, func() error { return nil })
}

// Close closes the listener, all connections and the store, so that calls of its handles fail with
// [ErrClosed]. It waits until all goroutines of the server have ended, and returns nil. Only the
// first Close has an effect.
func (s *Server) Close() error {
	s.closing.Do(func() {
		close(s.done)
		s.listener.Close()
		s.table.close()
		s.mu.Lock()
		s.closed = true
		for c := range s.sessions {
			c.conn.Close()
		}
		s.mu.Unlock()
		s.running.Wait()
	})
	return nil
}

// acceptBackoff is the pause after a failed accept, for example for lack of file
// descriptors, before the next attempt.
const acceptBackoff = 50 * time.Millisecond

// accept passes each new connection to admit, and returns once the listener is closed. After any
// other failure to accept it logs the error and pauses for acceptBackoff.
func (s *Server) accept() {
	for {
		conn, err := s.listener.Accept()
		switch {
		case err == nil:
			s.admit(conn)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			s.options.Logger.Warn("store: cannot accept a connection", "err", err)
			pause(s.done, acceptBackoff)
		}
	}
}

// pause blocks for the duration d and returns true, or returns false as soon as the channel done is
// closed.
func pause(done <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-done:
		return false
	}
}

// admit owns conn, a new connection, and starts a goroutine that serves it. If there are
// ServerOptions.MaxConns connections already, it first closes the oldest one that has never sent a
// request. If all have sent one, or the server is closed, it logs a warning and closes conn
// instead.
func (s *Server) admit(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var oldest *session
	if len(s.sessions) >= s.options.MaxConns {
		for c := range s.sessions {
			if !c.active.Load() && (oldest == nil || c.number < oldest.number) {
				oldest = c
			}
		}
	}
	if s.closed || len(s.sessions) >= s.options.MaxConns && oldest == nil {
		s.options.Logger.Warn("store: too many connections", "peer", conn.RemoteAddr())
		conn.Close()
		return
	}
	if oldest != nil {
		delete(s.sessions, oldest) // its goroutines end a moment later
		oldest.conn.Close()
	}
	s.number++
	c := &session{
		server:        s,
		table:         s.table,
		conn:          conn,
		number:        s.number,
		requests:      make(chan *request),
		done:          make(chan struct{}),
		ready:         make(chan struct{}, 1),
		subscriptions: make(map[string]*subscription),
	}
	s.sessions[c] = struct{}{}
	s.running.Go(func() {
		c.run()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.sessions, c)
	})
}

// memoryQuota bounds the memory of a server's requests, over all connections, from when they are
// received until they have been served. The first unchargedBytes of each request do not count.
type memoryQuota struct {
	limit int64
	used  atomic.Int64
}

// unchargedBytes is the memory of each request that does not count against the
// quota, so that small requests are served while large ones have used it up.
const unchargedBytes = 4 << 10

// charge is the memory that one request has reserved. One goroutine uses it at a
// time.
type charge struct {
	quota    *memoryQuota
	reserved int
	charged  int64 // the part of reserved that counts against the quota
}

// reserve adds n bytes to the memory reserved for a request. Bytes beyond the first unchargedBytes
// are charged to the server's quota. If the quota would be exceeded, reserve charges nothing more
// and returns an error that matches ErrLimit; the request must then fail, and its charge be
// released.
func (c *charge) reserve(n int) error {
	c.reserved += n
	more := int64(c.reserved-unchargedBytes) - c.charged
	if more <= 0 {
		return nil
	}
	if c.quota.used.Add(more) > c.quota.limit {
		c.quota.used.Add(-more)
		return fmt.Errorf("%w: more than %d bytes of requests are being received", ErrLimit, c.quota.limit)
	}
	c.charged += more
	return nil
}

// release returns the charged bytes to the server's quota. It must be called once, after the
// request was served or has failed.
func (c *charge) release() { c.quota.used.Add(-c.charged) }
