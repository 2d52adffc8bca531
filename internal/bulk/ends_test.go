package bulk_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/bulk"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// errTest is the cause that tests pass.
var errTest = errors.New("a cause of the test's own")

// plain is a stream that cannot gather writes, and whose writes cannot continue after a deadline.
type plain struct{ net.Conn }

func (p plain) TryWrite(...[]byte) (int, error) { return 0, nil }

func (p plain) CloseWrite() error { return p.Close() }

// gathering is a stream that gathers writes, as a socket does.
type gathering struct{ plain }

func (g gathering) WriteBuffers(p *net.Buffers) (int64, error) { return p.WriteTo(g.Conn) }

// kinds are the streams that tests run on.
var kinds = []struct {
	name    string
	connect func(t testing.TB) (one, other transport.Stream)
}{
	{"plain", func(testing.TB) (one, other transport.Stream) {
		a, b := net.Pipe()
		return plain{a}, plain{b}
	}},
	{"gathering", func(testing.TB) (one, other transport.Stream) {
		a, b := net.Pipe()
		return gathering{plain{a}}, gathering{plain{b}}
	}},
	{"tcp", tcp},
}

func tcp(t testing.TB) (one, other transport.Stream) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	b, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { a.Close(); b.Close() })
	return socket{a.(*net.TCPConn)}, socket{b.(*net.TCPConn)}
}

func onEachKind(t *testing.T, f func(t *testing.T, connect func(testing.TB) (one, other transport.Stream))) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) { f(t, k.connect) })
	}
}

// end is a Mover and the errors passed to Broken.
type end struct {
	*bulk.Mover
	broken chan error
}

// newEnd returns a Mover with the configuration cfg and a record of its errors. If cfg.Open is nil,
// the Mover uses stream; a nil cfg.Ready does nothing. The Mover and stream are closed when the
// test ends.
func newEnd(t *testing.T, stream transport.Stream, cfg bulk.Config) *end {
	t.Helper()
	e := &end{broken: make(chan error, 2)}
	cfg.Broken = func(err error) { e.broken <- err }
	cfg.Peer = "worker1"
	if cfg.Open == nil {
		cfg.Open = func(context.Context) (transport.Stream, error) { return stream, nil }
	}
	if cfg.Ready == nil {
		cfg.Ready = func(uint16, uint64) {}
	}
	e.Mover = bulk.New(cfg)
	t.Cleanup(func() { e.Close(nil); stream.Close() })
	return e
}

// pair returns two Movers that pass READY to each other directly. Tests call Send before Recv, as
// pipes do.
func pair(t *testing.T, one, other transport.Stream, checksum bool) (a, b *end) {
	t.Helper()
	a = newEnd(t, one, bulk.Config{Checksum: checksum, Ready: func(l uint16, id uint64) { b.HandleReady(l, id) }})
	b = newEnd(t, other, bulk.Config{Checksum: checksum, Ready: func(l uint16, id uint64) { a.HandleReady(l, id) }})
	return a, b
}

// wantBroken waits until Config.Broken is called, checks that the error names the peer, and returns
// the error.
func (e *end) wantBroken(t *testing.T) error {
	t.Helper()
	err := testwait.Finish(t, e.broken)
	var named *channel.Error
	require.ErrorAs(t, err, &named)
	require.Equal(t, "worker1", named.Peer)
	return err
}

// send begins a Send of src and returns a channel that receives the outcome. src is in use until
// then.
func send(ch channel.Channel, id uint64, src []byte) <-chan error {
	done, err := result()
	ch.Send(id, device.Bytes(src), done)
	return err
}

func recv(ch channel.Channel, id uint64, dst []byte) <-chan error {
	done, err := result()
	ch.Recv(id, device.Bytes(dst), done)
	return err
}

func result() (done func(error), err <-chan error) {
	ch := make(chan error, 2)
	return func(err error) { ch <- err }, ch
}

// numbered returns n bytes that are not zero and differ from their neighbours. The caller owns
// them.
func numbered(n int) []byte {
	const period = 251
	p := make([]byte, n)
	for i := range min(n, period) {
		p[i] = byte(i) + 1
	}
	for have := period; have < n; have *= 2 { // faster under the race detector
		copy(p[have:], p[:have])
	}
	return p
}

// chunk returns the wire form of a chunk, which it encodes without the package. It has a checksum
// if summed is true. status is 0 for a valid chunk and 1 for a discarded one.
func chunk(lane uint16, id uint64, data []byte, status uint32, summed bool) []byte {
	p := binary.LittleEndian.AppendUint64(nil, id)
	p = binary.LittleEndian.AppendUint32(p, uint32(len(data)))
	p = binary.LittleEndian.AppendUint16(p, lane)
	if summed {
		p = append(p, 1, 0)
	} else {
		p = append(p, 0, 0)
	}
	p = append(p, data...)
	sum := uint32(0)
	if summed {
		sum = crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli))
	}
	p = binary.LittleEndian.AppendUint32(p, status)
	return binary.LittleEndian.AppendUint32(p, sum)
}

// raw is the other end of a stream, controlled by the test.
type raw struct {
	t *testing.T
	transport.Stream
}

func (r raw) write(p []byte) {
	r.t.Helper()
	require.NoError(r.t, testwait.Finish(r.t, testwait.Start(func() error { _, err := r.Write(p); return err })))
}

func (r raw) read(n int) []byte {
	r.t.Helper()
	p := make([]byte, n)
	require.NoError(r.t, testwait.Finish(r.t, testwait.Start(func() error { _, err := io.ReadFull(r, p); return err })))
	return p
}

// wantBytes checks that got equals want. It does not print the bytes if they differ.
func wantBytes(t *testing.T, want, got []byte) {
	t.Helper()
	require.True(t, bytes.Equal(want, got), "wrong bytes")
}
