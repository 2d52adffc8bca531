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
	errNoTLS  = fmt.Errorf("%w: the peer ended the connection without any TLS record (a plain listener, or one that is closing?)", ErrTLSMismatch)
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

// alertBy returns ours if err, an error of crypto/tls, is about an alert that this end has sent,
// theirs if it is about one that the peer has sent, and otherwise another text. If a read fails
// although the socket has not failed and the peer has sent no alert, the peer's bytes are invalid.
// This end sends an alert about them, so a later write fails with ours.
func alertBy(err error) string {
	if alert, ok := errors.AsType[*net.OpError](err); ok {
		return alert.Op
	}
	return ""
}

func frameError(err error) error { return fmt.Errorf("%w: %w", transport.ErrFrame, err) }
