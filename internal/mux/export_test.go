package mux

import "github.com/tensorpipe-go/tensorpipe/transport"

// Windows returns the number of receive windows that a session of this package has.
func Windows(s transport.Session) int {
	ws := s.(*session).windows
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return len(ws.streams)
}

// SendWindows returns the number of send windows that a session of this package has.
func SendWindows(s transport.Session) int {
	l := s.(*session).link.sendWindows
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.streams)
}

// HoldWriting makes writes to a stream of this package block until release is called. It waits for
// a write in progress.
func HoldWriting(st transport.Stream) (release func()) {
	if p, ok := st.(*polledStream); ok {
		st = p.stream
	}
	turn := st.(*stream).writing
	turn.Lock()
	return turn.Unlock
}
