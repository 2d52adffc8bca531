package mux

import "github.com/tensorpipe-go/tensorpipe/transport"

// Windows returns the number of receive windows of a session.
func Windows(s transport.Session) int {
	ws := s.(*session).windows
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return len(ws.streams)
}

// SendWindows returns the number of send windows of a session.
func SendWindows(s transport.Session) int {
	l := s.(*session).link.sendWindows
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.streams)
}

// HoldWriting blocks writes to a stream until release is called.
func HoldWriting(st transport.Stream) (release func()) {
	turn := st.(*stream).writing
	turn.Lock()
	return turn.Unlock
}
