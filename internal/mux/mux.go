// Package mux implements a session of streams over one connection. The wire format is that of
// yamux, and go-yamux does most of the work. This package adds what [transport.Session] and
// [net.Conn] require beyond go-yamux.
//
// A session is a stack of three:
//
//	stream   serializes calls, implements deadlines, and determines why a call failed
//	yamux    opens and ends streams
//	link     checks each message from the connection, stores the bytes of streams, implements windows
//
// Bytes that are written to a stream bypass yamux: the stream passes them to the link, which writes
// them on the caller's goroutine if no other one is writing (writeQueue). Received bytes bypass it
// too (receiveBuffer): yamux sees only the messages that open and end streams.
//
// The reading goroutine of yamux receives for all streams. If the connection is a [Pollable], callers
// that poll a stream receive too (polledStream), and one goroutine at a time waits for the connection
// (watch).
//
// The link keeps errors away from yamux. If yamux learned that the connection has ended, it would
// end its streams. So if the connection ends, or the peer violates the protocol, the link ends the
// session and blocks yamux until Close. Bytes that have arrived can still be read.
//
// # Windows
//
// A window bounds the bytes that the peer has sent and the reader of the stream has not read. It
// begins with the 256 KiB that the protocol prescribes. When half of it has been read, the link
// grants that half again. If that took no more than four round trips the writer was waiting
// for the window, which doubles, up to SessionConfig.Window and as far as SessionConfig.Budget
// permits. It never shrinks, because credit cannot be taken back. The round trip is measured by a
// ping, at most once a second, and only while some window could grow. A peer that delays or hurries
// its replies gets no more than the budget permits.
//
// The credit for what this end may send is counted here too (sendWindows): yamux sends nothing on
// streams but their beginning and end.
//
// The receive windows of yamux are unlimited, since it receives no bytes. So the link removes the
// credit from the messages that yamux writes, sends credit for bytes that were read, and ends the session
// of a peer that exceeds a window before memory is allocated for the message.
//
// docs/decisions/2026-11-23-yamux.md lists the tasks of yamux, and the reasons for the workarounds.
package mux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"syscall"
	"time"

	"github.com/libp2p/go-yamux/v4"

	"github.com/tensorpipe-go/tensorpipe/internal/chanmutex"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

const (
	// minWindow is the window with which every stream begins; the protocol prescribes it.
	minWindow = 256 << 10

	// defaultWindow keeps 1 Gbit/s busy over 30 ms.
	defaultWindow = 4 << 20

	// messageSize bounds the part of a stream that one queued message carries, header included. Longer
	// messages would delay other streams. A part of 64 KiB and its description are written at once,
	// since the receiver of an incomplete one is woken twice.
	messageSize = 72 << 10

	// maxBody bounds the body of a message of the peer, and of one that is written from the memory of the
	// caller: it has no others to delay.
	maxBody = minWindow

	// spareBacklog is the number of streams beyond the peer's limit that may be open before Open
	// waits for the peer to accept some.
	spareBacklog = 16

	// noTimeout is longer than any session lives: yamux has no option to disable its timers.
	noTimeout = 100 * 365 * 24 * time.Hour
)

// New returns a session over conn, which the session owns; after an error the caller keeps conn.
// cfg.Window bounds the receive window of a stream: 0 means 4 MiB, and any other value below 256
// KiB means 256 KiB. The session must be closed even after it has ended: until then it keeps the
// bytes that were not read from its streams. The error matches ErrConfig if a limit of cfg is
// invalid.
func New(conn transport.Stream, cfg transport.SessionConfig) (transport.Session, error) {
	if cfg.MaxStreams < 0 || cfg.Window < 0 || cfg.MaxStreams > math.MaxInt32 || cfg.Window > math.MaxInt32 {
		return nil, fmt.Errorf("%w: %d streams with windows of %d bytes", ErrConfig, cfg.MaxStreams, cfg.Window)
	}
	window := uint32(max(cfg.Window, minWindow))
	if cfg.Window == 0 {
		window = defaultWindow
	}
	s := &session{
		done:      make(chan struct{}),
		closeDone: make(chan struct{}),
		opening:   chanmutex.New(),
		accepted:  make(chan transport.Stream),
		drained:   make(chan struct{}),
		streams:   make(map[*stream]struct{}),
		waiting:   make(map[uint32]struct{}),
	}
	s.life, s.expire = context.WithCancel(context.Background())
	s.windows = newWindows(window, cfg, func() { s.background(s.link.sendCredit) })
	s.link = newLink(conn, cfg, s, s.windows)
	s.serve = sync.OnceFunc(func() { s.background(s.serveAccept) })
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

// settings returns a configuration of yamux in which windows are unlimited, since the link
// implements them, and in which yamux does not read ahead, since the link does.
func settings(cfg transport.SessionConfig) *yamux.Config {
	return &yamux.Config{
		AcceptBacklog:           cfg.MaxStreams + spareBacklog,
		PingBacklog:             1,
		MeasureRTTInterval:      noTimeout,
		ConnectionWriteTimeout:  noTimeout,
		MaxIncomingStreams:      uint32(cfg.MaxStreams),
		InitialStreamWindowSize: math.MaxUint32,
		MaxStreamWindowSize:     math.MaxUint32,
		MaxMessageSize:          messageSize,
		LogOutput:               io.Discard,
	}
}

// ErrConfig matches the error of New for limits that are invalid.
var ErrConfig = errors.New("mux: bad configuration")

// errYamuxClosed ends a session that yamux has closed for a reason that this package does not know.
var errYamuxClosed = errors.New("mux: yamux closed the session")

// errReset is the error of a stream that the peer has reset; see ResetError.
var errReset = errors.New("mux: the peer has reset the stream")

// EndError is the error of calls on a stream whose session has ended. It matches the session's Err,
// also if that is io.EOF, but never equals io.EOF: a stream that its writer has not finished must
// not look like one that is complete.
type EndError struct {
	Err error // the session's Err
}

func (e *EndError) Error() string { return "the session has ended: " + e.Err.Error() }

// Unwrap returns the session's Err.
func (e *EndError) Unwrap() error { return e.Err }

// ResetError is the error of calls on a stream that the peer has reset, or refused. It matches
// syscall.ECONNRESET, as on TCP. The session goes on.
type ResetError struct {
	Stream uint32 // its number in the session
}

func (e *ResetError) Error() string { return fmt.Sprintf("stream %d was reset by the peer", e.Stream) }

// Unwrap returns syscall.ECONNRESET.
func (e *ResetError) Unwrap() error { return syscall.ECONNRESET }

// ProtocolError is the error of a session whose peer violated the protocol. It matches
// [transport.ErrFrame]. Retrying does not help.
type ProtocolError struct {
	Reason string
}

func (e *ProtocolError) Error() string { return "mux: the peer broke the protocol: " + e.Reason }

// Unwrap returns [transport.ErrFrame].
func (e *ProtocolError) Unwrap() error { return transport.ErrFrame }

func violation(format string, args ...any) error {
	return &ProtocolError{Reason: fmt.Sprintf(format, args...)}
}
