// Package mux turns one connection into a session of streams. The words on the
// wire are those of yamux, and go-yamux does the work; this package keeps the
// promises of [transport.Session] and of [net.Conn] that go-yamux does not.
//
// A session is a stack of three:
//
//	stream   takes turns, keeps deadlines, knows why a call failed
//	yamux    opens and ends streams, takes in what they get, has a goroutine that reads
//	link     looks at every message on its way between yamux and the connection,
//	         and keeps the windows
//
// What is written to a stream does not go through yamux, but from the stream to the
// link, where its writer sends it himself if nobody else is writing (outgoing).
//
// The link is what makes an end harmless. Were yamux told that the connection
// has ended, it would throw away what nobody has read yet. So the link judges
// each message before yamux sees it; where the connection ends, or the peer
// breaks the rules, it ends the session and leaves yamux waiting, its streams
// full, until Close. The unread part of a message that was cut off is lost.
//
// # Windows
//
// A window bounds what the peer may have on its way to a stream or unread at it.
// It begins with the 256 KiB that the protocol fixes. The bytes that were read
// are granted again once they are half of it; where that took no more than four
// round trips, the window was what the writer waited for, and doubles, up to
// SessionConfig.Window and as far as SessionConfig.Budget has room. It never
// shrinks: what was granted cannot be taken back. The round trip is measured by
// a ping, at most once in a second, and only while some window wants to grow. A
// peer that lies about it gets what the budget allows, as others do.
//
// What this end may send is counted here too (sending): yamux sends nothing on streams
// but their beginning and their end.
//
// The windows of yamux for receiving are open to the full, because its own way of granting is
// of no use: where a deadline comes in between it counts bytes as granted and
// never says so to the peer, and each step of growth forgets those that were
// read before. So the link strips the credit off what yamux writes, writes what
// the streams' readers have earned, and ends the session of a peer that sends
// more before yamux takes memory for it.
package mux

import (
	"fmt"
	"io"
	"math"
	"time"

	"github.com/libp2p/go-yamux/v4"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

const (
	// minWindow is what every stream may send before it hears from its reader;
	// the protocol fixes it.
	minWindow = 256 << 10

	// defaultWindow keeps 1 Gbit/s busy over 30 ms.
	defaultWindow = 4 << 20

	// messageSize is how much of a stream goes into one message at most, header
	// included: longer ones would let others wait.
	messageSize = 64 << 10

	// maxBody bounds what a peer may put into one message, because yamux takes
	// memory for all of it when it sees the header.
	maxBody = minWindow

	// spare is how many streams may be opened, beyond the limit that holds for
	// the peer, before Open waits for the peer to take some of them.
	spare = 16

	// never is longer than any session lives: yamux ends sessions whose peer is
	// slow, and cannot be told not to.
	never = 100 * 365 * 24 * time.Hour
)

// New makes a session of conn, which belongs to it from then on. A window below
// 256 KiB counts as 256 KiB. The session must be closed even when it has ended:
// until then it keeps what its streams have not read yet.
func New(conn transport.Stream, cfg transport.SessionConfig) (transport.Session, error) {
	if cfg.Streams < 0 || cfg.Window < 0 || cfg.Streams > math.MaxInt32 || cfg.Window > math.MaxInt32 {
		return nil, fmt.Errorf("%w: %d streams with windows of %d bytes", ErrConfig, cfg.Streams, cfg.Window)
	}
	s := newSession(conn, cfg)
	role := yamux.Server
	if cfg.Client {
		role = yamux.Client
	}
	var err error
	if s.inner, err = role(s.link, settings(cfg), nil); err != nil {
		return nil, err
	}
	return s, nil
}

// largest is what one window may grow to.
func largest(cfg transport.SessionConfig) uint32 {
	if cfg.Window == 0 {
		return defaultWindow
	}
	return uint32(max(cfg.Window, minWindow))
}

// settings has windows without bounds, which leaves them to the link. The link
// reads ahead, so that yamux need not.
func settings(cfg transport.SessionConfig) *yamux.Config {
	return &yamux.Config{
		AcceptBacklog:           cfg.Streams + spare,
		PingBacklog:             1,
		MeasureRTTInterval:      never,
		ConnectionWriteTimeout:  never,
		MaxIncomingStreams:      uint32(cfg.Streams),
		InitialStreamWindowSize: math.MaxUint32,
		MaxStreamWindowSize:     math.MaxUint32,
		MaxMessageSize:          messageSize,
		LogOutput:               io.Discard,
	}
}
