package uv

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

var (
	errCutOff = fmt.Errorf("the connection ended without the close_notify of TLS: %w", io.ErrUnexpectedEOF)
	errNotTLS = fmt.Errorf("%w: the peer does not speak TLS (a plain connection to a TLS listener, or the reverse?)", ErrTLSMismatch)
	errSilent = fmt.Errorf("%w: the peer ended the connection without a word of TLS (a plain listener, or one that is closing?)", ErrTLSMismatch)
)

// socket is TCP as crypto/tls is to see it. It tells apart what that would
// confuse: an end of TCP and an end of TLS, and peers without TLS from broken
// ones.
type socket struct {
	*net.TCPConn
	src     io.Reader // of its bytes; of the reading goroutine, as is heard
	dialled bool
	heard   int   // leading bytes that were looked at
	failed  error // of the last Read

	// Of a session with a quota: bytes of TLS since the last that were data, which may be
	// the beginning of a handshake message that crypto/tls keeps until it is complete.
	quota  transport.Quota
	hidden int
}

func newSocket(tcp *net.TCPConn, dialled bool) *socket {
	return &socket{TCPConn: tcp, src: tcp, dialled: dialled}
}

func (s *socket) Read(p []byte) (n int, err error) {
	n, err = s.read(p)
	s.failed = err
	return n, err
}

func (s *socket) read(p []byte) (int, error) {
	n, err := s.src.Read(p)
	for _, b := range p[:n] {
		if s.heard == len(recordStart) {
			break
		}
		if !recordStart[s.heard](b) {
			return 0, errNotTLS
		}
		s.heard++
	}
	if s.quota != nil {
		s.hidden += n
		s.quota.Add(n)
	}
	switch {
	case err == nil:
		return n, nil
	case s.dialled && s.heard == 0 && (err == io.EOF || errors.Is(err, syscall.ECONNRESET)):
		return n, errSilent
	case err == io.EOF:
		return n, errCutOff // not io.ErrUnexpectedEOF, which crypto/tls may turn into io.EOF
	}
	return n, err
}

// recordStart tells how a TLS connection starts: a type and a version.
var recordStart = [...]func(byte) bool{
	func(b byte) bool { return tlsRecord(b) == handshakeRecord || tlsRecord(b) == alertRecord },
	func(b byte) bool { return b == 3 },
}

// SetWriteDeadline does nothing: when to give up is the Conn's to say, not that
// of crypto/tls, which gives its close_notify five seconds.
func (s *socket) SetWriteDeadline(time.Time) error { return nil }

// decrypted reads from TLS. How the end looked below it is a matter for
// handshakes; here it is just an early end.
type decrypted struct {
	io.Reader
	socket *socket // below
}

func (d decrypted) Read(p []byte) (int, error) {
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
		err = forged(err)
	}
	return n, err
}

// Whose alert ended a connection, as crypto/tls has it.
const (
	ours   = "local error"
	theirs = "remote error"
)

// alertBy is meaningful where an alert ended the connection. Where nothing is
// wrong with the socket, and the peer does not complain, the error of a read is
// about bytes that are no TLS, or that the peer did not seal. A write then fails
// with the alert that was sent about them.
func alertBy(err error) string {
	if alert, ok := errors.AsType[*net.OpError](err); ok {
		return alert.Op
	}
	return ""
}

func forged(err error) error { return fmt.Errorf("%w: %w", transport.ErrFrame, err) }
