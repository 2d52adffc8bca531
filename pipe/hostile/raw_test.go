package hostile_test

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// raw is the attacker's end of one connection.
type raw struct {
	net.Conn // TCP, or TLS over it
	tcp      *net.TCPConn
	t        testing.TB
}

func newRaw(t testing.TB, c net.Conn) *raw {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(testTimeout)))
	t.Cleanup(func() { c.Close() })
	return wrapRaw(t, c)
}

func wrapRaw(t testing.TB, c net.Conn) *raw {
	r := &raw{Conn: c, t: t}
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	r.tcp = c.(*net.TCPConn)
	return r
}

// CloseWrite ends the attacker's direction of the connection in order; the other direction stays
// open. With TLS it sends the alert close_notify, and the TCP connection ends only with Close.
func (r *raw) CloseWrite() error {
	return r.Conn.(interface{ CloseWrite() error }).CloseWrite()
}

// send writes parts to the connection unchanged, one after the other. It ignores errors, since the
// victim may have closed the connection at the first wrong byte.
func (r *raw) send(parts ...[]byte) {
	for _, p := range parts {
		_, _ = r.Write(p)
	}
}

// header sends the header of a frame that claims a body of size bytes, without the body. It ignores
// errors, as send does.
func (r *raw) header(size uint64) { r.send(binary.LittleEndian.AppendUint64(nil, size)) }

func (r *raw) frame(body []byte) { r.send(appendFrame(nil, body)) }

func appendFrame(dst, body []byte) []byte {
	return append(binary.LittleEndian.AppendUint64(dst, uint64(len(body))), body...)
}

// read waits for the victim's next frame and returns its body, in new memory. It fails the test if
// there is none.
func (r *raw) read() []byte {
	r.t.Helper()
	var header [8]byte
	_, err := io.ReadFull(r, header[:])
	require.NoError(r.t, err)
	body := make([]byte, binary.LittleEndian.Uint64(header[:]))
	_, err = io.ReadFull(r, body)
	require.NoError(r.t, err)
	return body
}

// waitClosed reads and drops the victim's bytes until the victim closes the connection. It fails
// the test if that takes too long.
func (r *raw) waitClosed() {
	r.t.Helper()
	_, err := io.Copy(io.Discard, r)
	require.False(r.t, errors.Is(err, os.ErrDeadlineExceeded), "the victim keeps the connection open")
}

// reset closes the connection with a TCP reset, so that the victim's calls fail with ECONNRESET.
func (r *raw) reset() {
	_ = r.tcp.SetLinger(0) // the victim may have reset it first
	r.tcp.Close()
}

// closeTCP closes the TCP connection in order, but with TLS does not send the alert close_notify
// first.
func (r *raw) closeTCP() { r.tcp.Close() }

func (r *raw) local() string { return r.LocalAddr().String() }
