package mux

import "github.com/tensorpipe-go/tensorpipe/transport"

// Windows is the number of windows that a session keeps.
func Windows(s transport.Session) int {
	ws := s.(*session).windows
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return len(ws.streams)
}

// Allowances is how many streams of s there are to send on.
func Allowances(s transport.Session) int {
	l := s.(*session).link.sending
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.streams)
}

// HoldWriting keeps everybody from writing to a stream until release.
func HoldWriting(st transport.Stream) (release func()) {
	turn := st.(*stream).writing
	turn.Take()
	return turn.Give
}
