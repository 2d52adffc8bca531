// Package mux turns one connection into a session of streams. The words on the
// wire are those of yamux, and go-yamux does the work; this package keeps the
// promises of [transport.Session] and of [net.Conn] that go-yamux does not.
//
// A session is a stack of three:
//
//	stream   takes turns, keeps deadlines, knows why a call failed
//	yamux    queues, windows, one goroutine that reads and one that writes
//	link     looks at every message on its way between yamux and the connection
//
// The link is what makes an end harmless. Were yamux told that the connection
// has ended, it would throw away what nobody has read yet. So the link judges
// each message before yamux sees it; where the connection ends, or the peer
// breaks the rules, it ends the session and leaves yamux waiting, its streams
// full, until Close. The unread part of a message that was cut off is lost.
//
// # Windows
//
// A stream's window is what the caller allows, from the first moment on. Memory
// is taken as bytes arrive, so a window that is never filled costs nothing, and
// one that follows the round trip would have to be guessed for the streams that
// matter, which are opened before anything could be measured. The growth that
// yamux has of its own is off: each step of it forgets to grant what was read
// since the last one, and so it can starve a stream.
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
	s := newSession(conn, cfg.Client, window(cfg))
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

func window(cfg transport.SessionConfig) uint32 {
	if cfg.Window == 0 {
		return defaultWindow
	}
	return uint32(max(cfg.Window, minWindow))
}

// settings has the two windows equal, which keeps yamux from growing one into
// the other. The link reads ahead, so that yamux need not.
func settings(cfg transport.SessionConfig) *yamux.Config {
	return &yamux.Config{
		AcceptBacklog:           cfg.Streams + spare,
		PingBacklog:             1,
		MeasureRTTInterval:      never,
		ConnectionWriteTimeout:  never,
		MaxIncomingStreams:      uint32(cfg.Streams),
		InitialStreamWindowSize: window(cfg),
		MaxStreamWindowSize:     window(cfg),
		MaxMessageSize:          messageSize,
		LogOutput:               io.Discard,
	}
}
