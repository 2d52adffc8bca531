package bulk_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/bulk"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

const (
	headerSize  = 16
	trailerSize = 8
)

// The sender aborts after the peer has read k bytes of the chunk and stopped reading. Its memory is
// released at once, later changes to the memory are not sent, and the next transfer follows a chunk
// that is complete and marked as discarded.
func TestSenderAbortsAtEveryByte(t *testing.T) {
	data := numbered(40)
	whole := chunk(3, 7, data, 0, false)
	for k := range len(whole) {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			near, far := net.Pipe()
			e, peer := newEnd(t, gathering{plain{near}}, bulk.Config{}), raw{t, plain{far}}
			ch := e.Lane(3)
			src := bytes.Clone(data)
			done, outcome := result()
			ch.Send(7, device.Host(src[:10], src[10:11], src[11:]), done)
			next := send(ch, 8, []byte("next"))
			e.HandleReady(3, 7)
			head := peer.read(k)

			ch.Abort(7, errTest)
			require.Equal(t, errTest, testwait.Finish(t, outcome))
			clear(src) // the race detector reports a read that is still running
			e.HandleReady(3, 8)
			if k > 0 {
				head = append(head, peer.read(len(whole)-k)...)
				want := bytes.Clone(whole[:k])
				want = append(want, chunk(3, 7, make([]byte, 40), 1, false)[k:]...)
				if k > headerSize+len(data) {
					want = whole
				}
				require.Equal(t, want, head)
			}
			require.Equal(t, chunk(3, 8, []byte("next"), 0, false), peer.read(headerSize+4+trailerSize))
			require.NoError(t, testwait.Finish(t, next))
			require.Empty(t, outcome)
		})
	}
}

// Several chunks leave in one turn. The interrupted one is discarded, the earlier ones are valid, and
// the later ones are not sent.
func TestSenderAbortsBetweenChunks(t *testing.T) {
	const mib = 1 << 20
	const size = headerSize + mib + trailerSize
	data := numbered(3*mib + 5)
	var whole, voided []byte
	for part := range slices.Chunk(data, mib) {
		whole = append(whole, chunk(3, 7, part, 0, false)...)
		voided = append(voided, chunk(3, 7, make([]byte, len(part)), 1, false)...)
	}
	for _, k := range []int{1, size - 1, size, size + 1, size + headerSize, 2*size - trailerSize, 2*size - trailerSize + 1, 3 * size, len(whole) - trailerSize - 1} {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			near, far := net.Pipe()
			e, peer := newEnd(t, gathering{plain{near}}, bulk.Config{}), raw{t, plain{far}}
			ch := e.Lane(3)
			src := bytes.Clone(data)
			outcome, next := send(ch, 7, src), send(ch, 8, []byte("next"))
			e.HandleReady(3, 7)
			wantBytes(t, whole[:k], peer.read(k))
			ch.Abort(7, errTest)
			require.Equal(t, errTest, testwait.Finish(t, outcome))
			clear(src)
			e.HandleReady(3, 8)
			end := min((k+size-1)/size*size, len(whole)) // of the chunk that k is in
			want := voided[k:end]
			if end-k < trailerSize {
				want = whole[k:end]
			}
			wantBytes(t, want, peer.read(end-k))
			require.Equal(t, chunk(3, 8, []byte("next"), 0, false), peer.read(headerSize+4+trailerSize))
			require.NoError(t, testwait.Finish(t, next))
		})
	}
}

// On a stream that cannot be interrupted, copied bytes are sent completely.
func TestCopyingSenderAbortsAtEveryByte(t *testing.T) {
	data := numbered(40)
	whole := chunk(3, 7, data, 0, true)
	for k := 1; k < len(whole); k++ {
		near, far := net.Pipe()
		e, peer := newEnd(t, plain{near}, bulk.Config{Checksum: true}), raw{t, plain{far}}
		ch := e.Lane(3)
		src := bytes.Clone(data)
		outcome := send(ch, 7, src)
		next := send(ch, 8, []byte("next"))
		e.HandleReady(3, 7)
		head := peer.read(k)
		ch.Abort(7, errTest)
		require.Equal(t, errTest, testwait.Finish(t, outcome))
		clear(src)
		e.HandleReady(3, 8)
		require.Equal(t, whole, append(head, peer.read(len(whole)-k)...))
		require.Equal(t, chunk(3, 8, []byte("next"), 0, true), peer.read(headerSize+4+trailerSize))
		require.NoError(t, testwait.Finish(t, next))
	}
}

// A receiver aborts after k bytes of two chunks have arrived. Its memory is released at once, and bytes
// that arrive later are dropped.
func TestReceiverAbortsAtEveryByte(t *testing.T) {
	data := numbered(60)
	for _, status := range []uint32{0, 1} {
		sent := append(chunk(3, 7, data[:40], 0, true), chunk(3, 7, data[40:], status, true)...)
		for k := range len(sent) {
			near, far := net.Pipe()
			e, peer := newEnd(t, plain{near}, bulk.Config{}), raw{t, plain{far}}
			ch := e.Lane(3)
			dst, other := make([]byte, 60), make([]byte, 5)
			done, outcome := result()
			ch.Recv(7, device.Host(dst[:10], dst[10:11], dst[11:]), done)
			next := recv(ch, 8, other)
			peer.write(sent[:k])
			ch.Abort(7, errTest)
			require.Equal(t, errTest, testwait.Finish(t, outcome))
			clear(dst)
			peer.write(sent[k:])
			peer.write(chunk(3, 8, []byte("other"), 0, true))
			require.NoError(t, testwait.Finish(t, next))
			require.Equal(t, "other", string(other))
			require.Equal(t, make([]byte, 60), dst)
			require.Empty(t, outcome)
			require.Empty(t, e.broken)
		}
	}
}

// A peer that does not read delays neither aborts nor other transfers.
func TestAbortWhilePeerDoesNotRead(t *testing.T) {
	onEachKind(t, func(t *testing.T, connect func(testing.TB) (one, other transport.Stream)) {
		one, other := connect(t)
		e := newEnd(t, one, bulk.Config{})
		ch := e.Lane(0)
		const size = 32 << 20
		src := numbered(size)
		outcome := send(ch, 1, src)
		e.HandleReady(0, 1)
		_, err := io.ReadFull(other, make([]byte, 1))
		require.NoError(t, err)
		ch.Abort(1, errTest)
		require.Equal(t, errTest, testwait.Finish(t, outcome))
		clear(src)

		next := send(ch, 2, []byte("next"))
		e.HandleReady(0, 2)
		got := testwait.Start(func() []byte {
			want, tail := chunk(0, 2, []byte("next"), 0, false), []byte(nil)
			p := make([]byte, 64<<10)
			for !bytes.HasSuffix(tail, want) {
				n, err := other.Read(p)
				if err != nil {
					return nil
				}
				tail = append(tail[max(0, len(tail)-len(want)):], p[:n]...)
			}
			return tail
		})
		require.NotNil(t, testwait.Finish(t, got))
		require.NoError(t, testwait.Finish(t, next))
	})
}

// Transfers in both directions are aborted at any time at either end, at both, or at none. The others
// complete, no wrong byte becomes part of a tensor, and released memory is not accessed.
func TestAbortAnyTime(t *testing.T) {
	onEachKind(t, func(t *testing.T, connect func(testing.TB) (one, other transport.Stream)) {
		one, other := connect(t)
		a, b := pair(t, one, other, true)
		ends := [2]channel.Channel{a.Lane(1), b.Lane(1)}
		r := rand.New(rand.NewPCG(1, 2))
		for round := range uint64(30) {
			var checks []func()
			for i := range uint64(6) {
				from, to := ends[i%2], ends[1-i%2]
				id := round<<8 | i // aborting one must not hit the other direction
				checks = append(checks, tensor(t, from, to, id, r.IntN(1<<20)+1, r.IntN(4), r.IntN(300)))
			}
			for _, check := range checks {
				check()
			}
		}
		require.Empty(t, a.broken)
		require.Empty(t, b.broken)
	})
}

// tensor begins a transfer of n bytes and aborts it after a while: at the sender if bit 0 of aborting
// is set, at the receiver if bit 1 is set. The other end aborts it too, as a pipe would.
func tensor(t *testing.T, from, to channel.Channel, id uint64, n, aborting, wait int) (check func()) {
	src, dst := numbered(n), make([]byte, n)
	sent, received := send(from, id, src), recv(to, id, dst)
	for range wait {
		runtime.Gosched()
	}
	if aborting&1 != 0 {
		from.Abort(id, errTest)
	}
	if aborting&2 != 0 {
		to.Abort(id, errTest)
	}
	return func() {
		t.Helper()
		sendErr := testwait.Finish(t, sent)
		clear(src)
		if aborting != 0 {
			from.Abort(id, errTest)
			to.Abort(id, errTest)
		} else {
			require.NoError(t, sendErr)
		}
		err := testwait.Finish(t, received)
		if err == nil {
			wantBytes(t, numbered(n), dst)
		}
		clear(dst)
		if aborting == 0 {
			require.NoError(t, err)
		}
	}
}
