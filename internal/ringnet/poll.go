package ringnet

import (
	"github.com/tensorpipe-go/tensorpipe/internal/step"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

var _ transport.Poller = (*stream)(nil)

// TryRead implements transport.Poller.
func (s *stream) TryRead(p []byte) (int, error) {
	s.read.turn.Lock()
	defer s.read.turn.Unlock()
	return s.tryRead(p)
}

// TryWrite implements transport.Poller.
func (s *stream) TryWrite(pieces ...[]byte) (int, error) {
	s.write.turn.Lock()
	defer s.write.turn.Unlock()
	if err := s.unwritable(); err != nil {
		return 0, err
	}
	out := s.ends.out
	n, err := out.putAll(pieces, func() { s.rouse(out.reader, bellReadable) })
	if err != nil {
		s.bond.end(err)
	} else if n > 0 {
		s.write.looker.Came()
	}
	return n, err
}

// Room implements transport.Poller.
func (s *stream) Room() bool {
	s.write.turn.Lock()
	defer s.write.turn.Unlock()
	return s.writeChanged() || s.hasRoom()
}

// Await implements transport.Poller.
func (s *stream) Await() {
	for !s.settled() {
		<-s.read.wake
	}
	s.bells(false)
}

// settled reports whether Await has nothing to wait for; if it has, the peer will
// ring, unless somebody looks.
func (s *stream) settled() bool {
	if s.woken.Swap(false) {
		return true
	}
	if s.looking.Load() {
		return s.readable()
	}
	return s.bells(true)
}

// Wake implements transport.Poller.
func (s *stream) Wake() {
	s.woken.Store(true)
	s.read.poke()
}

// Look implements transport.Poller.
func (s *stream) Look() bool { return s.lookBy(s.read.looker.Find) }

// LookDue implements transport.Poller.
func (s *stream) LookDue() bool { return s.lookBy(s.read.looker.FindDue) }

func (s *stream) lookBy(find func(look func() bool) bool) bool {
	if !s.looking.Load() {
		s.looking.Store(true)
		s.bells(false)
	}
	if s.readable() || find(s.look) {
		return true
	}
	s.Mind()
	return false
}

// Mind implements transport.Poller.
func (s *stream) Mind() {
	s.looking.Store(false)
	if s.bells(true) {
		s.read.poke()
	}
}

// bells tells the peer whether to ring when something comes, and reports whether
// something has.
func (s *stream) bells(on bool) bool {
	s.read.turn.Lock()
	defer s.read.turn.Unlock()
	in := s.ends.in
	if in == nil {
		return true
	}
	if on {
		step.Here()
		in.reader.Store(1)
		step.Here()
	} else if in.reader.Load() != 0 {
		step.Here()
		in.reader.Store(0)
	}
	return s.readChanged()
}

func (s *stream) readable() bool {
	s.read.turn.Lock()
	defer s.read.turn.Unlock()
	return s.readChanged()
}
