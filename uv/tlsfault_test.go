package uv_test

import (
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// TestPlainPeerMeetsTLS checks that a client without TLS and a TLS listener both get errors that
// match ErrTLSMismatch, whatever the client sends first, and that the listener then accepts other
// clients.
func TestPlainPeerMeetsTLS(t *testing.T) {
	tr := newSecured(newAuthority(t).mutual(t, "127.0.0.1"))
	for name, hello := range map[string]transport.Frame{
		"a name": {[]byte("thirteen byte")},
		// The length looks like the type of a record.
		"22 bytes": {make([]byte, 22)},
		"21 bytes": {make([]byte, 21)},
		"empty":    {},
		"large":    {make([]byte, 32<<10)},
	} {
		t.Run(name, func(t *testing.T) {
			l := listen(t, tr, "127.0.0.1")
			plain, err := uv.New().Dial(t.Context(), l.Addr())
			require.NoError(t, err)
			require.NoError(t, plain.WriteFrames(hello, hello))
			for range 2 {
				_, err := plain.NextFrame()
				require.ErrorIs(t, err, uv.ErrTLSMismatch)
				require.ErrorIs(t, err, transport.ErrFrame)
				require.ErrorContains(t, err, "look like TLS")
			}
			require.NoError(t, plain.Close())
			accepted, err := l.Accept(t.Context())
			require.NoError(t, err)
			for range 2 {
				_, err := accepted.NextFrame()
				require.ErrorIs(t, err, uv.ErrTLSMismatch)
				require.ErrorContains(t, err, "what the peer sends is not TLS")
				require.ErrorContains(t, err, plain.LocalAddr())
			}
			require.ErrorIs(t, accepted.WriteFrames(transport.Frame{}), uv.ErrTLSMismatch)
			require.ErrorIs(t, accepted.CloseWrite(), uv.ErrTLSMismatch)
			id, err := accepted.(transport.Identified).PeerIdentity()
			require.ErrorIs(t, err, uv.ErrTLSMismatch)
			require.Nil(t, id.TLS)
			require.NoError(t, accepted.Close())
			connect(t, tr, l, l.Addr())
		})
	}
}

// TestTLSPeerMeetsPlain checks that a TLS client and a listener without TLS, which closes the
// connection after an error, both get errors that match ErrTLSMismatch.
func TestTLSPeerMeetsPlain(t *testing.T) {
	dialled, accepted := dialAndRead(t, newSecured(&tls.Config{}), listen(t, uv.New(), "127.0.0.1"))
	require.ErrorIs(t, accepted, uv.ErrTLSMismatch)
	require.ErrorIs(t, accepted, transport.ErrFrame)
	require.ErrorContains(t, accepted, "look like TLS")
	require.ErrorIs(t, dialled, uv.ErrTLSMismatch)
	require.ErrorContains(t, dialled, "a plain listener")
}

// TestTLSPeerIsSpokenToInPlain checks that Dial with TLS returns ErrTLSMismatch if a listener
// without TLS sends a frame before it reads.
func TestTLSPeerIsSpokenToInPlain(t *testing.T) {
	for _, size := range []int{0, 5, 21, 22, 1 << 20} {
		l := listen(t, uv.New(), "127.0.0.1")
		said := make(chan error, 1)
		go func() {
			_, err := newSecured(&tls.Config{}).Dial(t.Context(), l.Addr())
			said <- err
		}()
		c, err := l.Accept(t.Context())
		require.NoError(t, err)
		written := make(chan error, 1)
		go func() { written <- c.WriteFrames(transport.Frame{make([]byte, size)}) }()
		err = <-said
		require.ErrorIs(t, err, uv.ErrTLSMismatch)
		require.ErrorContains(t, err, "what the peer sends is not TLS")
		<-written
		require.NoError(t, c.Close())
	}
}

// TestFramesThatResembleTLS checks that a header that begins like a TLS record, but cannot be the
// first record of a connection, is read as the length of a frame. A header that can be the first
// record is an error that matches ErrTLSMismatch.
func TestFramesThatResembleTLS(t *testing.T) {
	for _, header := range []string{
		"\x16\x03\x01\x00\x00\x00\x00\x00", "\x15\x03\x03\x00\x00\x00\x00\x00", "\x16\x03\x01\x02\x00\x00\x00\x00",
		"\x16\x03\x05\x00\x00\x01\x00\x00", "\x17\x03\x03\x00\x00\x01\x00\x00",
	} {
		peer, c := raw(t)
		_, err := peer.Write([]byte(header))
		require.NoError(t, err)
		n, err := c.NextFrame()
		if header[5] == 0 && header[0] == 0x16 {
			require.ErrorIs(t, err, uv.ErrTLSMismatch)
			continue
		}
		require.NoError(t, err)
		require.EqualValues(t, binary.LittleEndian.Uint64([]byte(header)), n)
	}
}

// TestTruncation checks that reads of a TLS connection whose socket was closed without close_notify
// return io.ErrUnexpectedEOF and never io.EOF, also between two frames.
func TestTruncation(t *testing.T) {
	config := newAuthority(t).mutual(t, "127.0.0.1")
	whole := "\x04\x00\x00\x00\x00\x00\x00\x00body"
	for name, sent := range map[string]string{
		"before the first frame": "",
		"between frames":         whole,
		"within a header":        whole + whole[:3],
		"within a body":          whole + whole[:10],
	} {
		t.Run(name, func(t *testing.T) {
			l := listen(t, newSecured(config), "127.0.0.1")
			peer, err := dialRaw(l.Addr(), config)
			require.NoError(t, err)
			c, err := l.Accept(t.Context())
			require.NoError(t, err)
			defer c.Close()
			_, err = peer.Write([]byte(sent))
			require.NoError(t, err)
			require.NoError(t, peer.NetConn().Close())
			for err = nil; err == nil; {
				if _, err = c.NextFrame(); err == nil {
					err = c.ReadBody(make([]byte, 4))
				}
			}
			require.Equal(t, io.ErrUnexpectedEOF, err)
			_, err = c.NextFrame()
			require.NotErrorIs(t, err, io.EOF)
		})
	}
}

// TestForgedRecords checks that bytes that are no valid TLS record, sent after the handshake, make
// the calls of the receiving end return ErrFrame. The other end gets an alert, and its error does
// not match ErrFrame.
func TestForgedRecords(t *testing.T) {
	config := newAuthority(t).mutual(t, "127.0.0.1")
	for name, record := range map[string]string{
		"sealed by nobody": "\x17\x03\x03\x00\x20" + string(make([]byte, 32)),
		"too long":         "\x17\x03\x03\xff\xff" + string(make([]byte, 65535)),
		"another version":  "\x17\x09\x09\x00\x20" + string(make([]byte, 32)),
		"another protocol": "GET / HTTP/1.1\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			l := listen(t, newSecured(config), "127.0.0.1")
			peer, err := dialRaw(l.Addr(), config)
			require.NoError(t, err)
			defer peer.Close()
			c, err := l.Accept(t.Context())
			require.NoError(t, err)
			defer c.Close()
			_, err = peer.NetConn().Write([]byte(record))
			require.NoError(t, err)
			for range 2 {
				_, err = c.NextFrame()
				require.ErrorIs(t, err, transport.ErrFrame)
				require.ErrorIs(t, c.WriteFrames(transport.Frame{}), transport.ErrFrame)
			}

			c, err = newSecured(config).Dial(t.Context(), l.Addr())
			require.NoError(t, err)
			defer c.Close()
			accepted, err := l.Accept(t.Context())
			require.NoError(t, err)
			defer accepted.Close()
			_, err = uv.TCPConn(c).Write([]byte(record))
			require.NoError(t, err)
			_, err = accepted.NextFrame()
			require.ErrorIs(t, err, transport.ErrFrame)
			_, err = c.NextFrame()
			require.ErrorContains(t, err, "remote error")
			require.NotErrorIs(t, err, transport.ErrFrame)
		})
	}
}

// TestSlowHandshake checks that a client that does not complete its handshake does not delay other
// clients, and that Close of the listener closes its connection.
func TestSlowHandshake(t *testing.T) {
	tr := newSecured(newAuthority(t).mutual(t, "127.0.0.1"))
	for _, hello := range []string{"", "\x16", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc"} {
		l := listen(t, tr, "127.0.0.1")
		slow, err := net.Dial("tcp", l.Addr())
		require.NoError(t, err)
		defer slow.Close()
		_, err = slow.Write([]byte(hello))
		require.NoError(t, err)
		dialled, accepted := connect(t, tr, l, l.Addr())
		exchange(t, dialled, accepted, []transport.Frame{{[]byte("x")}}, [][]byte{make([]byte, 1)})
		require.NoError(t, l.Close())
		_, err = slow.Read(make([]byte, 1))
		require.Error(t, err)
	}
}

// TestHandshakeTimesOut checks that a handshake that exceeds the listener's timeout fails: the
// calls on the accepted connection return os.ErrDeadlineExceeded.
func TestHandshakeTimesOut(t *testing.T) {
	t.Parallel()
	config := newAuthority(t).mutual(t, "127.0.0.1")
	tr := uv.New(uv.WithTLS(config, config), uv.WithHandshakeTimeout(time.Millisecond))
	l := listen(t, tr, "127.0.0.1")
	slow, err := net.Dial("tcp", l.Addr())
	require.NoError(t, err)
	c, err := l.Accept(t.Context())
	require.NoError(t, err)
	require.NoError(t, slow.Close())
	_, err = c.NextFrame()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.ErrorContains(t, err, "TLS handshake with "+slow.LocalAddr().String())
	require.NoError(t, c.Close())
	_, err = c.NextFrame()
	require.ErrorIs(t, err, transport.ErrClosed)
}

// TestManyUnaccepted checks that a TLS listener accepts more connections than its backlog holds,
// which wait in the kernel, and that its Close closes those that were not accepted.
func TestManyUnaccepted(t *testing.T) {
	config := newAuthority(t).mutual(t, "127.0.0.1")
	l := listen(t, newSecured(config), "127.0.0.1")
	var waiting []net.Conn
	for range 200 {
		c, err := net.Dial("tcp", l.Addr())
		require.NoError(t, err)
		defer c.Close()
		waiting = append(waiting, c)
	}
	for _, c := range waiting[:150] {
		require.NoError(t, c.Close())
	}
	for range 150 {
		c, err := l.Accept(t.Context())
		require.NoError(t, err)
		_, err = c.NextFrame()
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.NoError(t, c.Close())
	}
	require.NoError(t, l.Close())
	for _, c := range waiting[150:] {
		_, err := c.Read(make([]byte, 1))
		require.Error(t, err)
	}
}

// TestCloseWriteWithoutSpace checks that CloseWrite and Close return while a write is blocked
// because the peer does not read, and that the write returns ErrClosed.
func TestCloseWriteWithoutSpace(t *testing.T) {
	tr := newSecured(newAuthority(t).mutual(t, "127.0.0.1"))
	l := listen(t, tr, "127.0.0.1")
	dialled, accepted := connect(t, tr, l, l.Addr())
	written := make(chan error, 1)
	go func() { written <- dialled.WriteFrames(transport.Frame{make([]byte, 64<<20)}) }()
	_, err := accepted.NextFrame()
	require.NoError(t, err)
	require.NoError(t, dialled.CloseWrite())
	require.ErrorIs(t, <-written, transport.ErrClosed)
	require.NoError(t, dialled.CloseWrite(), "it may be called again")
	require.NoError(t, dialled.Close())
}

// TestCloseDuringCloseWrite checks that the peer reads io.EOF if Close is called while another
// goroutine is in CloseWrite: Close does not interrupt the sending of close_notify.
func TestCloseDuringCloseWrite(t *testing.T) {
	tr := newSecured(newAuthority(t).mutual(t, "127.0.0.1"))
	l := listen(t, tr, "127.0.0.1")
	for i := range 100 {
		dialled, accepted := connect(t, tr, l, l.Addr())
		var ends sync.WaitGroup
		ends.Go(func() { dialled.CloseWrite() })
		for range i % 20 {
			runtime.Gosched()
		}
		dialled.Close()
		_, err := accepted.NextFrame()
		require.Equal(t, io.EOF, err)
		ends.Wait()
		require.NoError(t, accepted.Close())
	}
}

// TestCloseWriteDuringAWrite checks that a frame that is being written when CloseWrite is called
// arrives completely or not at all if the socket has space, and that the peer then reads io.EOF.
func TestCloseWriteDuringAWrite(t *testing.T) {
	tr := newSecured(newAuthority(t).mutual(t, "127.0.0.1"))
	l := listen(t, tr, "127.0.0.1")
	for range 50 {
		dialled, accepted := connect(t, tr, l, l.Addr())
		begun := make(chan struct{})
		written := testwait.Start(func() (err error) {
			for close(begun); err == nil; {
				err = dialled.WriteFrames(transport.Frame{[]byte("hello")})
			}
			return err
		})
		read := testwait.Start(func() error {
			for got := make([]byte, 5); ; {
				if _, err := accepted.NextFrame(); err != nil {
					return err
				}
				if err := accepted.ReadBody(got); err != nil || string(got) != "hello" {
					return fmt.Errorf("%q: %w", got, err)
				}
			}
		})
		<-begun
		require.NoError(t, testwait.Finish(t, testwait.Start(dialled.CloseWrite)))
		require.Equal(t, io.EOF, testwait.Finish(t, read))
		require.ErrorIs(t, testwait.Finish(t, written), transport.ErrClosed)
		require.NoError(t, dialled.Close())
		require.NoError(t, accepted.Close())
	}
}

// TestSmallFramesAreOneRecord checks that frames of 16 KB in all are sent as one TLS record, which
// takes one system call.
func TestSmallFramesAreOneRecord(t *testing.T) {
	config := newAuthority(t).mutual(t, "127.0.0.1")
	l := listen(t, newSecured(config), "127.0.0.1")
	peer, err := dialRaw(l.Addr(), config)
	require.NoError(t, err)
	defer peer.Close()
	c, err := l.Accept(t.Context())
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.WriteFrames(transport.Frame{make([]byte, 7000)}, transport.Frame{make([]byte, 3000), make([]byte, 6000)}))
	n, err := peer.Read(make([]byte, 32<<10))
	require.NoError(t, err)
	require.Equal(t, 16016, n)
}

func TestNothingIsAllocatedPerBatchOverTLS(t *testing.T) {
	config := newAuthority(t).mutual(t, "127.0.0.1")
	l := listen(t, newSecured(config), "127.0.0.1")
	w, r := connect(t, newSecured(config), l, l.Addr())
	frames, dst := []transport.Frame{{make([]byte, 8)}}, [][]byte{make([]byte, 8)}
	require.NoError(t, w.WriteFrames(frames...))
	read(t, r, 1, dst)
	require.LessOrEqual(t, testing.AllocsPerRun(200, func() {
		if err := w.WriteFrames(frames...); err != nil {
			panic(err)
		}
		read(t, r, 1, dst)
	}), 4.0, "what crypto/tls needs for a record")
}

// TestNoSpaceForLastRecord checks that CloseWrite and Close return nil although the kernel has no
// space for close_notify, and that a later Close ends the sending.
func TestNoSpaceForLastRecord(t *testing.T) {
	t.Parallel()
	tr := newSecured(newAuthority(t).mutual(t, "127.0.0.1"))
	for name, end := range map[string]func(transport.Conn) error{
		"CloseWrite": transport.Conn.CloseWrite,
		"Close":      transport.Conn.Close,
	} {
		t.Run(name, func(t *testing.T) {
			l := listen(t, tr, "127.0.0.1")
			dialled, _ := connect(t, tr, l, l.Addr())
			fill(t, uv.TCPConn(dialled))
			require.NoError(t, end(dialled))
			require.NoError(t, dialled.Close())
		})
	}
}

// fill writes to tcp until the kernel accepts no more bytes, and then clears the write deadline.
func fill(t *testing.T, tcp *net.TCPConn) {
	t.Helper()
	for _, size := range []int{1 << 20, 1} {
		var err error
		for err == nil {
			require.NoError(t, tcp.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
			_, err = tcp.Write(make([]byte, size))
		}
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	}
	require.NoError(t, tcp.SetWriteDeadline(time.Time{}))
}

// TestNoAcceptance checks that Dial fails if the listener negotiates this package's protocol and
// then sends nothing, or something other than the empty frame.
func TestNoAcceptance(t *testing.T) {
	config := newAuthority(t).mutual(t, "127.0.0.1")
	config.NextProtos = []string{uv.Protocol}
	for sent, want := range map[string]error{
		"":                                      io.ErrUnexpectedEOF,
		"\x00\x00":                              io.ErrUnexpectedEOF,
		"\x01\x00\x00\x00\x00\x00\x00\x00x":     transport.ErrFrame,
		"\xff\xff\xff\xff\xff\xff\xff\xff more": transport.ErrFrame,
	} {
		l, err := tls.Listen("tcp", "127.0.0.1:0", config)
		require.NoError(t, err)
		failed := make(chan error, 1)
		go func() {
			_, err := newSecured(config).Dial(t.Context(), l.Addr().String())
			failed <- err
		}()
		c, err := l.Accept()
		require.NoError(t, err)
		require.NoError(t, c.(*tls.Conn).Handshake())
		_, err = c.Write([]byte(sent))
		require.NoError(t, err)
		require.NoError(t, c.(*tls.Conn).CloseWrite())
		require.ErrorIs(t, <-failed, want, "%q", sent)
		require.NoError(t, l.Close())
		c.Close()
	}
}
