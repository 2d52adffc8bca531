package uv

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

var (
	errCutOff = fmt.Errorf("the connection ended without the close_notify of TLS: %w", io.ErrUnexpectedEOF)
	errNotTLS = fmt.Errorf("%w: what the peer sends is not TLS", ErrTLSMismatch)
	errNoTLS  = fmt.Errorf("%w: the peer ended the connection without a TLS record, as a plain listener does, or one that is closing", ErrTLSMismatch)
)

// socket is the TCP connection that crypto/tls uses. It distinguishes what crypto/tls does not: the
// end of TCP from the end of TLS, and peers without TLS from faulty ones.
type socket struct {
	*net.TCPConn
	src     io.Reader // of its bytes; the reading goroutine uses it and checked
	dialled bool
	checked int   // number of leading bytes that were checked
	failed  error // of the last Read

	// For a session with a quota: bytes of TLS since the last that were data, which may be
	// the beginning of a handshake message that crypto/tls keeps until it is complete.
	quota  transport.Quota
	hidden int

	// keepsRest makes a Write that a deadline interrupts succeed: rest keeps the bytes that the
	// TCP connection did not accept. crypto/tls would fail for good after the error.
	keepsRest bool
	writing   sync.Mutex // guards rest
	rest      []byte
}

func (s *socket) Read(p []byte) (n int, err error) {
	defer func() { s.failed = err }()
	n, err = s.src.Read(p)
	for _, b := range p[:n] {
		if s.checked == len(recordStart) {
			break
		}
		if !recordStart[s.checked](b) {
			return 0, errNotTLS
		}
		s.checked++
	}
	if s.quota != nil {
		s.hidden += n
		s.quota.Add(n)
	}
	switch {
	case err == nil:
		return n, nil
	case s.dialled && s.checked == 0 && (err == io.EOF || errors.Is(err, syscall.ECONNRESET)):
		return n, errNoTLS
	case err == io.EOF:
		return n, errCutOff // not io.ErrUnexpectedEOF, which crypto/tls may turn into io.EOF
	}
	return n, err
}

// Write writes p, a record, after the bytes that earlier calls have kept. If keepsRest is set and the
// write deadline passes, it keeps the bytes that were not written, for sendRest, and returns len(p)
// and nil. Otherwise the error is that of the TCP connection.
func (s *socket) Write(p []byte) (n int, err error) {
	if !s.keepsRest {
		return s.TCPConn.Write(p)
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	if err = s.sendRestLocked(); err == nil {
		n, err = s.TCPConn.Write(p)
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return n, err
	}
	s.rest = append(s.rest, p[n:]...)
	return len(p), nil
}

// sendRest writes the bytes that Write has kept. The error is that of the TCP connection; the bytes
// that were not written are still kept then.
func (s *socket) sendRest() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	return s.sendRestLocked()
}

// sendRestLocked writes the bytes that Write has kept. The error is that of the TCP connection; the
// bytes that were not written are still kept then. The caller holds s.writing.
func (s *socket) sendRestLocked() error {
	if len(s.rest) == 0 {
		return nil
	}
	n, err := s.TCPConn.Write(s.rest)
	if s.rest = s.rest[n:]; len(s.rest) == 0 {
		s.rest = nil
	}
	return err
}

// recordStart checks the first bytes of a TLS connection: a type and a version.
var recordStart = [...]func(byte) bool{
	func(b byte) bool { return tlsRecord(b) == handshakeRecord || tlsRecord(b) == alertRecord },
	func(b byte) bool { return b == 3 },
}

// SetWriteDeadline does nothing and returns nil. crypto/tls calls it to allow its close_notify five
// seconds; tlsConn sets the deadlines itself, on the TCPConn.
func (s *socket) SetWriteDeadline(time.Time) error { return nil }

// tlsReader reads decrypted bytes. If the connection was cut off it returns io.ErrUnexpectedEOF. If
// the peer's bytes are invalid it returns an error that matches transport.ErrFrame. After a read of
// data it releases the bytes of TLS that the socket has added to the quota.
type tlsReader struct {
	io.Reader
	socket *socket // below TLS
}

func (d tlsReader) Read(p []byte) (int, error) {
	n, err := d.Reader.Read(p)
	if n > 0 && d.socket.quota != nil {
		d.socket.quota.Release(d.socket.hidden)
		d.socket.hidden = 0
	}
	switch {
	case err == nil || err == io.EOF:
		return n, err
	case err == errCutOff:
		return n, io.ErrUnexpectedEOF
	case d.socket.failed == nil && alertBy(err) != theirs:
		err = frameError(err)
	}
	return n, err
}

// Which end's alert ended a connection, as crypto/tls reports it.
const (
	ours   = "local error"
	theirs = "remote error"
)

// alertBy returns which end has sent the TLS alert that err, an error of crypto/tls, is about: ours
// ("local error") if this end has sent it, theirs ("remote error") if the peer has. If err is not
// about an alert it returns another text, possibly empty. This end sends an alert when the peer's
// bytes are invalid; its later writes then fail with ours.
func alertBy(err error) string {
	if alert, ok := errors.AsType[*net.OpError](err); ok {
		return alert.Op
	}
	return ""
}

func frameError(err error) error { return fmt.Errorf("%w: %w", transport.ErrFrame, err) }
