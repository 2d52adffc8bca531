package bulk_test

import (
	"bytes"
	"io"
	"math"
	"net"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/internal/bulk"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// broken returns a copy of p in which the byte at index i is b. A negative i counts from the end.
func broken(p []byte, i int, b byte) []byte {
	p = bytes.Clone(p)
	p[(i+len(p))%len(p)] = b
	return p
}

// Bytes that violate the protocol end the connection and every transfer, with an error that names the
// violation.
func TestHostileBytes(t *testing.T) {
	good := chunk(0, 1, numbered(10), 0, true)
	unsummed := chunk(0, 1, numbered(10), 0, false)
	for _, c := range []struct {
		name string
		sent []byte
		want error
		says string
	}{
		{"no bytes", broken(good, 8, 0), channel.ErrProtocol, "length"},
		{"more than a chunk may have", broken(good, 10, 0x11), channel.ErrProtocol, "length"},
		{"4 GiB", broken(good, 11, 0xff), channel.ErrProtocol, "length"},
		{"unknown flag", broken(good, 14, 5), channel.ErrProtocol, "flags"},
		{"reserved byte", broken(good, 15, 1), channel.ErrProtocol, "reserved"},
		{"unknown status", broken(good, -8, 2), channel.ErrProtocol, "status"},
		{"one byte too many", chunk(0, 1, numbered(11), 0, false), channel.ErrProtocol, "sends 11 bytes where 10"},
		{"too many in the second chunk", append(chunk(0, 1, numbered(9), 0, false), chunk(0, 1, numbered(2), 0, false)...), channel.ErrProtocol, "sends 11 bytes where 10"},
		{"not asked for", chunk(0, 2, numbered(10), 0, false), channel.ErrProtocol, "before its READY"},
		{"other bytes", broken(good, 20, 0), bulk.ErrChecksum, "CHUNK"},
		{"other checksum", broken(good, -1, good[len(good)-1]+1), bulk.ErrChecksum, "CHUNK"},
		{"checksum without the flag", broken(unsummed, -1, 1), channel.ErrProtocol, "crc"},
	} {
		t.Run(c.name, func(t *testing.T) {
			kind := delayed.New("npu", 1)
			t.Cleanup(kind.Close)
			s, err := kind.NewStream(kind.Devices()[0])
			require.NoError(t, err)
			t.Cleanup(s.(*delayed.Stream).Hold())
			near, far := tcp(t)
			e, peer := newEnd(t, near, bulk.Config{}), raw{t, far}
			ch := e.Lane(0)
			waiting := recv(ch, 1, make([]byte, 10))
			done, held := result()
			ch.Recv(2, device.Bytes(make([]byte, 10)).WithStream(s), done)
			sending := send(ch, 1, make([]byte, 10))
			peer.write(c.sent)
			got := e.wantBroken(t)
			require.ErrorIs(t, got, c.want)
			require.ErrorContains(t, got, c.says)
			for _, outcome := range []<-chan error{waiting, held, sending} {
				require.ErrorIs(t, testwait.Finish(t, outcome), c.want)
			}
		})
	}
}

// A discarded chunk makes only its own transfer fail, with ErrAborted. Other transfers and the
// connection go on.
func TestDiscardedChunk(t *testing.T) {
	near, far := net.Pipe()
	e, peer := newEnd(t, plain{near}, bulk.Config{}), raw{t, plain{far}}
	ch := e.Lane(0)
	outcome, other := recv(ch, 1, make([]byte, 20)), recv(ch, 2, make([]byte, 5))
	peer.write(chunk(0, 1, numbered(10), 0, false))
	voided := chunk(0, 1, numbered(10), 1, true)
	peer.write(broken(voided, 20, 0)) // the checksum of a discarded chunk is ignored
	err := testwait.Finish(t, outcome)
	require.ErrorIs(t, err, channel.ErrAborted)
	require.Equal(t, "channel bulk to worker1: peer gave up the transfer", err.Error())
	peer.write(chunk(0, 2, []byte("hello"), 0, false))
	require.NoError(t, testwait.Finish(t, other))
	require.Empty(t, e.broken)
}

// Chunks and READYs of unknown or completed transfers are dropped, and take no memory.
func TestUnknownTransfers(t *testing.T) {
	near, far := tcp(t)
	e, peer := newEnd(t, near, bulk.Config{}), raw{t, far}
	ch := e.Lane(7)
	over := recv(ch, 1, make([]byte, 5))
	peer.write(chunk(7, 1, []byte("hello"), 0, false))
	require.NoError(t, testwait.Finish(t, over))
	last := recv(ch, 2, make([]byte, 5))
	stray := chunk(7, 1, make([]byte, 1<<20), 0, true)
	stray[len(stray)-1]++ // no checksum is computed of dropped bytes

	before := allocated()
	for range 64 {
		peer.write(stray)
	}
	for i := range uint64(10_000) {
		e.HandleReady(uint16(i), i)
		e.HandleReady(7, math.MaxUint64-i)
	}
	peer.write(chunk(7, 2, []byte("hello"), 0, false))
	require.NoError(t, testwait.Finish(t, last))
	require.Less(t, allocated()-before, uint64(1<<20))
	require.Empty(t, e.broken)
}

// allocated returns the number of bytes that this process has allocated in all.
func allocated() uint64 {
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.TotalAlloc
}

// A repeated READY does not give a transfer two turns.
func TestRepeatedReady(t *testing.T) {
	near, far := net.Pipe()
	e, peer := newEnd(t, plain{near}, bulk.Config{}), raw{t, plain{far}}
	ch := e.Lane(0)
	first, second := send(ch, 1, []byte("hello")), send(ch, 2, []byte("world"))
	for range 3 {
		e.HandleReady(0, 1)
	}
	require.Equal(t, chunk(0, 1, []byte("hello"), 0, false), peer.read(29))
	require.NoError(t, testwait.Finish(t, first))
	e.HandleReady(0, 1)
	e.HandleReady(0, 2)
	require.Equal(t, chunk(0, 2, []byte("world"), 0, false), peer.read(29))
	require.NoError(t, testwait.Finish(t, second))
	require.NoError(t, e.Close(nil))
	_, err := far.Read(make([]byte, 1))
	require.Equal(t, io.EOF, err)
}
