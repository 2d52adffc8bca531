package shm

import "sync"

// Transport is shared memory. It implements [transport.Transport], and its
// connections [transport.Identified], [transport.Streamer] and
// [transport.Multiplexer].
type Transport struct {
	settings
	tokensOnly bool // show the peer no doorbell, as if it were C++
	reactors   reactors
}

// reactors holds the reactor of a transport: one for all connections, for as
// long as there are any.
type reactors struct {
	mu      sync.Mutex
	current *reactor
}

// acquire returns the reactor, which must be released. One that a peer has
// broken serves its connections to their end, but no more of them.
func (s *reactors) acquire() (*reactor, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil || s.current.broken.Load() {
		r, err := newReactor()
		if err != nil {
			return nil, err
		}
		s.current = r
	}
	s.current.users++
	return s.current, nil
}

func (s *reactors) release(r *reactor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.users--
	if r.users > 0 {
		return
	}
	if s.current == r {
		s.current = nil
	}
	r.close()
}
