package store

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"
)

// ServerOptions change a [Server]. A zero field stands for its default.
type ServerOptions struct {
	Limits Limits

	// Conns is how many connections the server keeps; 4,096. A PyTorch process
	// has two, one of ours has one or two and one more for each call of Wait
	// under way. With all of them taken a new connection replaces the oldest that
	// has never asked anything, or is refused if all have.
	Conns int

	// RequestBytes bounds the memory of requests that have come in part, of all
	// connections together; 64 MiB.
	RequestBytes int

	// Stall is how long a peer may take to send a request whose first byte has
	// come, or to take an answer, before its connection is closed; 30 s. A peer
	// that asks nothing may stay, as long as its machine is there.
	Stall time.Duration

	// Logger hears of connections that were closed for a reason. Nil is silent.
	Logger *slog.Logger
}

func (o ServerOptions) orDefaults() ServerOptions {
	o.Conns = cmp.Or(o.Conns, 4096)
	o.RequestBytes = cmp.Or(o.RequestBytes, 64<<20)
	o.Stall = cmp.Or(o.Stall, 30*time.Second)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Server offers a store over TCP. There is no password: whoever connects may
// read and write it.
type Server struct {
	options  ServerOptions
	table    *table
	local    *Memory // the same table
	fund     fund
	listener net.Listener
	done     chan struct{} // closed by Close
	shut     func()
	running  sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	number   uint64 // connections so far
	sessions map[*session]struct{}
}

// keepAlive finds out within about a minute that a peer's machine is gone.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 3}

// Serve opens a server on addr, host:port; port 0 picks a free one. The caller
// closes it. ctx bounds the call and not the server.
func Serve(ctx context.Context, addr string, o ServerOptions) (*Server, error) {
	config := net.ListenConfig{KeepAliveConfig: keepAlive}
	l, err := config.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fail("serve", addr, err)
	}
	s := &Server{
		options:  o.orDefaults(),
		table:    newTable(o.Limits),
		listener: l,
		done:     make(chan struct{}),
		sessions: make(map[*session]struct{}),
	}
	s.local = &Memory{s.table}
	s.fund.limit = int64(s.options.RequestBytes)
	s.shut = sync.OnceFunc(s.close)
	s.running.Add(1)
	go s.accept()
	return s, nil
}

// Addr is where the server listens, host:port.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Store returns a handle on what is served, which does not go over the network.
// Its Close leaves the server as it is.
func (s *Server) Store() Store {
	return newView(s.local, userPrefix, func() error { return nil })
}

// Close ends all connections and handles, and returns when nothing of the
// server runs any more. Only the first Close does something.
func (s *Server) Close() error {
	s.shut()
	return nil
}

func (s *Server) close() {
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
}

// breath is the pause after an accept that failed, for want of descriptors for
// example, which will be there again.
const breath = 50 * time.Millisecond

func (s *Server) accept() {
	defer s.running.Done()
	for {
		conn, err := s.listener.Accept()
		switch {
		case err == nil:
			s.admit(conn)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			s.options.Logger.Warn("store: cannot accept a connection", "err", err)
			pause(s.done, breath)
		}
	}
}

// pause waits, or returns false as soon as done is closed.
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

// admit finds a place for a connection.
func (s *Server) admit(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !s.room() {
		s.options.Logger.Warn("store: too many connections", "peer", conn.RemoteAddr())
		conn.Close()
		return
	}
	s.number++
	c := newSession(s, conn, s.number)
	s.sessions[c] = struct{}{}
	s.running.Add(1)
	go func() {
		defer s.running.Done()
		c.run()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.sessions, c)
	}()
}

// room returns whether there is a place, and makes one if need be and it can. It
// is called with the lock held.
func (s *Server) room() bool {
	if len(s.sessions) < s.options.Conns {
		return true
	}
	var oldest *session
	for c := range s.sessions {
		if !c.spoke.Load() && (oldest == nil || c.number < oldest.number) {
			oldest = c
		}
	}
	if oldest == nil {
		return false
	}
	delete(s.sessions, oldest) // its goroutine ends now, but not at once
	oldest.conn.Close()
	return true
}
