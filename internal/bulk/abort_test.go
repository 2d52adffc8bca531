package bulk_test

import (
	"bytes"
	"context"
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

// A sender aborts after the peer has read k bytes of a chunk and stopped reading. The sender's
// memory is released at once, and later changes to the memory are not sent. The peer still receives
// a complete chunk, marked as discarded unless its trailer had begun, and then the next transfer.
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

// If a sender aborts during a turn of several chunks, the interrupted chunk is discarded, the
// earlier ones are valid, and the later ones are not sent.
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

// On a stream whose writes cannot be interrupted, a sender that aborts still sends the bytes that
// it has copied.
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

// tensor begins a transfer of n bytes and aborts it after a number of yields, wait: at the sender
// if bit 0 of aborting is set, at the receiver if bit 1 is set. check waits for the outcome, in
// which the other end aborts too, as a pipe would, and checks the errors and the bytes.
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

// If one of several transfers whose chunks are written together is aborted, all others arrive, and
// the memory of all is released only when it is not in use. The chunk that was interrupted is
// discarded if it belongs to the aborted transfer, and valid otherwise.
func TestSenderAbortsOneOfSeveral(t *testing.T) {
	const count, size, whole = 3, 40, headerSize + 40 + trailerSize
	for aborted := range uint64(count) {
		for k := 1; k < count*whole; k++ {
			near, far := net.Pipe()
			hold := make(chan struct{})
			stream := gathering{plain{near}}
			e := newEnd(t, stream, bulk.Config{Open: func(context.Context) (transport.Stream, error) {
				<-hold
				return stream, nil
			}})
			peer := raw{t, plain{far}}
			ch := e.Lane(3)
			var outcomes []<-chan error
			for id := range uint64(count) {
				outcomes = append(outcomes, send(ch, id, numbered(size)))
				e.HandleReady(3, id)
			}
			close(hold) // all are queued, and make one turn
			head := peer.read(k)
			end := chunk(3, count, []byte("last"), 0, false)
			ch.Abort(aborted, errTest)
			read := testwait.Start(func() []byte {
				got := head
				for p := make([]byte, 1); !bytes.HasSuffix(got, end); {
					n, err := far.Read(p)
					if got = append(got, p[:n]...); err != nil {
						break
					}
				}
				return got
			})
			var errs [count]error
			for id := range errs {
				errs[id] = testwait.Finish(t, outcomes[id])
			}
			last := send(ch, count, []byte("last"))
			e.HandleReady(3, count)
			got := testwait.Finish(t, read)
			require.NoError(t, testwait.Finish(t, last))
			for id, err := range errs {
				if uint64(id) == aborted && err != nil {
					require.Equal(t, errTest, err)
					continue
				}
				require.NoError(t, err)
				valid := chunk(3, uint64(id), numbered(size), 0, false)
				require.Equal(t, 1, bytes.Count(got, valid), "transfer %d after %d bytes", id, k)
			}
			require.Zero(t, (len(got)-len(end))%whole)
			require.Empty(t, e.broken)
		}
	}
}
