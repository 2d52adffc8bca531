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

// raw is an attacker's end of one connection.
type raw struct {
	net.Conn // TCP, or TLS over it
	tcp      *net.TCPConn
	t        testing.TB
}

func newRaw(t testing.TB, c net.Conn) *raw {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
	t.Cleanup(func() { c.Close() })
	return bare(t, c)
}

func bare(t testing.TB, c net.Conn) *raw {
	r := &raw{Conn: c, t: t}
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	r.tcp = c.(*net.TCPConn)
	return r
}

// CloseWrite ends what the attacker says, in good order. TLS has an end of its
// own; that of TCP then comes with Close.
func (r *raw) CloseWrite() error {
	return r.Conn.(interface{ CloseWrite() error }).CloseWrite()
}

// send writes bytes as they are. The victim may have hung up at the first
// wrong one, so errors say nothing.
func (r *raw) send(parts ...[]byte) {
	for _, p := range parts {
		_, _ = r.Write(p)
	}
}

// header announces a frame of any size, without its body.
func (r *raw) header(size uint64) { r.send(binary.LittleEndian.AppendUint64(nil, size)) }

func (r *raw) frame(body []byte) { r.send(appendFrame(nil, body)) }

func appendFrame(dst, body []byte) []byte {
	return append(binary.LittleEndian.AppendUint64(dst, uint64(len(body))), body...)
}

// read takes the victim's next frame.
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

// ended waits until the victim hangs up, whatever it says before.
func (r *raw) ended() {
	r.t.Helper()
	_, err := io.Copy(io.Discard, r)
	require.False(r.t, errors.Is(err, os.ErrDeadlineExceeded), "the victim keeps the connection open")
}

// reset closes the connection the hard way: the victim gets ECONNRESET.
func (r *raw) reset() {
	_ = r.tcp.SetLinger(0) // the victim may have reset it first
	r.tcp.Close()
}

// cut ends the connection of TCP in good order, and TLS over it in none.
func (r *raw) cut() { r.tcp.Close() }

func (r *raw) local() string { return r.LocalAddr().String() }
