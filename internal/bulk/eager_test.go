package bulk_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/internal/bulk"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// eagerFlag is the flag of an eager chunk.
const eagerFlag = 2

// eagerPair returns two Movers that pass READY and credit to each other directly. b has granted a
// credit of that many bytes, and has its stream open.
func eagerPair(t *testing.T, one, other transport.Stream, credit int, checksum bool) (a, b *end) {
	t.Helper()
	a = newEnd(t, one, bulk.Config{Checksum: checksum, Ready: func(l uint16, id uint64) { b.HandleReady(l, id) }})
	b = newEnd(t, other, bulk.Config{
		Checksum: checksum,
		Ready:    func(l uint16, id uint64) { a.HandleReady(l, id) },
		Credit:   func(n int) { require.NoError(t, a.HandleCredit(uint64(n))) },
	})
	b.Grant(credit)
	first, second := send(a.Lane(9), 1, []byte("open")), recv(b.Lane(9), 1, make([]byte, 4))
	require.NoError(t, testwait.Finish(t, first))
	require.NoError(t, testwait.Finish(t, second))
	return a, b
}

// sendEager begins an eager transfer of src, which must not be longer than the credit granted.
func sendEager(t *testing.T, e *end, lane uint16, id uint64, src []byte) <-chan error {
	t.Helper()
	require.True(t, e.CanSendEager(len(src), 0))
	done, err := result()
	e.SendEager(lane, id, device.Bytes(src), done)
	return err
}

// requireReturned waits until b has returned all credit to a.
func requireReturned(t *testing.T, a, b *end) {
	t.Helper()
	b.HandleWantCredit()
	testwait.Finish(t, a.Returned())
	require.False(t, a.Lent())
}

// Eager transfers arrive in whatever order they are received, are announced late or early, wait for credit or not,
// and are aborted by either end. All credit comes back, and the connection goes on.
func TestEagerInAnyOrder(t *testing.T) {
	onEachKind(t, func(t *testing.T, connect func(testing.TB) (one, other transport.Stream)) {
		for seed := range uint64(12) {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(seed, 1))
				one, other := connect(t)
				a, b := eagerPair(t, one, other, []int{8 << 20, 700_000}[seed/2%2], seed%2 == 0)
				const count = 12
				sizes, dsts, sent, got := make([]int, count), make([][]byte, count), make([]<-chan error, count), make([]<-chan error, count)
				expect := func(i int) { require.NoError(t, b.Expect(3, uint64(i), sizes[i])) }
				var late []int
				for i := range count {
					sizes[i] = native.MinEager + rnd.IntN(600_000)
					if len(late) > 0 || rnd.IntN(6) == 0 { // they are announced in order
						late = append(late, i)
					} else {
						expect(i)
					}
					sent[i] = sendEager(t, a, 3, uint64(i), numbered(sizes[i]))
				}
				plainSent := send(a.Lane(4), 0, numbered(3<<20))
				for _, i := range late {
					expect(i)
				}
				aborted := map[int]bool{}
				for _, i := range rnd.Perm(count) {
					what := rnd.IntN(8)
					switch what {
					case 0:
						a.Lane(3).Abort(uint64(i), errTest)
						b.Lane(3).Abort(uint64(i), errTest)
						aborted[i] = true
						continue
					case 1:
						b.Lane(3).Abort(uint64(i), errTest)
						aborted[i] = true
						continue
					case 2:
						a.Lane(3).Abort(uint64(i), errTest)
						aborted[i] = true
					}
					dsts[i] = make([]byte, sizes[i])
					got[i] = recv(b.Lane(3), uint64(i), dsts[i])
					if what == 3 {
						b.Lane(3).Abort(uint64(i), errTest)
						aborted[i] = true
					}
				}
				plainDst := make([]byte, 3<<20)
				require.NoError(t, testwait.Finish(t, recv(b.Lane(4), 0, plainDst)))
				require.NoError(t, testwait.Finish(t, plainSent))
				wantBytes(t, numbered(3<<20), plainDst)
				for i := range count {
					err := testwait.Finish(t, sent[i])
					if !aborted[i] {
						require.NoError(t, err)
					}
					if got[i] == nil {
						continue
					}
					if err = testwait.Finish(t, got[i]); !aborted[i] {
						require.NoError(t, err)
					}
					if err == nil {
						wantBytes(t, numbered(sizes[i]), dsts[i])
					}
				}
				requireReturned(t, a, b)
				require.Empty(t, a.broken)
				require.Empty(t, b.broken)
			})
		}
	})
}

// An eager sender aborts after the peer has read k bytes of its chunks. Its memory is released at
// once. The transfer then ends with a discarded chunk, unless all its chunks are valid.
func TestEagerSenderAbortsAtEveryByte(t *testing.T) {
	const last = 40
	data := numbered(native.MaxChunk + last)
	first := headerSize + native.MaxChunk + trailerSize
	whole := headerSize + last + trailerSize
	ks := []int{0, 1, headerSize, first / 2, first - trailerSize, first - trailerSize + 1, first - 1, first}
	for k := 1; k < whole; k++ {
		ks = append(ks, first+k)
	}
	for _, k := range ks {
		near, far := net.Pipe()
		e, peer := newEnd(t, gathering{plain{near}}, bulk.Config{}), raw{t, plain{far}}
		require.NoError(t, e.HandleCredit(8<<20))
		outcome := sendEager(t, e, 3, 7, data)
		head := peer.read(k)
		e.Lane(3).Abort(7, errTest)
		require.Equal(t, errTest, testwait.Finish(t, outcome))
		next := sendEager(t, e, 3, 8, numbered(native.MinEager))
		valid := 0
		src := io.MultiReader(bytes.NewReader(head), peer)
		for ended := false; !ended; {
			h, void := readChunk(t, src)
			require.EqualValues(t, 7, h.ID)
			require.True(t, h.Eager)
			if !void {
				valid += h.Length
			}
			ended = void || valid == len(data)
		}
		h, void := readChunk(t, src)
		require.EqualValues(t, 8, h.ID, "k is %d", k)
		require.Equal(t, native.MinEager, h.Length)
		require.False(t, void)
		require.NoError(t, testwait.Finish(t, next))
		require.NoError(t, e.Close(nil))
	}
}

// readChunk reads a chunk and returns its header and whether it is discarded.
func readChunk(t *testing.T, src io.Reader) (h native.ChunkHeader, void bool) {
	t.Helper()
	p := make([]byte, headerSize)
	read := func(p []byte) {
		require.NoError(t, testwait.Finish(t, testwait.Start(func() error { _, err := io.ReadFull(src, p); return err })))
	}
	read(p)
	h, err := native.DecodeChunkHeader(p)
	require.NoError(t, err)
	body := make([]byte, h.Length+trailerSize)
	read(body)
	trailer, err := native.DecodeChunkTrailer(body[h.Length:])
	require.NoError(t, err)
	return h, trailer.Discarded
}

// Bytes without memory stay in the connection for a while, and are then staged, so that the sender
// is done. The Recv that comes later gets them.
func TestEagerStagedAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, other := net.Pipe()
		a, b := eagerPair(t, gathering{plain{one}}, gathering{plain{other}}, 4<<20, true)
		data := numbered(3 << 19)
		sent := sendEager(t, a, 0, 7, data)
		require.NoError(t, b.Expect(0, 7, len(data)))
		synctest.Wait()
		require.Empty(t, sent, "the bytes are in the connection")
		require.NoError(t, <-sent)
		dst := make([]byte, len(data))
		require.NoError(t, <-recv(b.Lane(0), 7, dst))
		wantBytes(t, data, dst)
		requireReturned(t, a, b)
	})
}

// A Recv whose memory is not ready gets its bytes once it is, and does not stop others meanwhile. If
// the work on its memory fails, it fails, and the bytes are dropped.
func TestEagerMemoryNotReady(t *testing.T) {
	for _, fault := range []error{nil, io.ErrNoProgress} {
		kind := delayed.New("npu", 1)
		t.Cleanup(kind.Close)
		s, err := kind.NewStream(kind.Devices()[0])
		require.NoError(t, err)
		release := s.(*delayed.Stream).Hold()
		require.NoError(t, s.(*delayed.Stream).Launch(func(...[]byte) error { return fault }))
		one, other := tcp(t)
		a, b := eagerPair(t, one, other, 8<<20, true)
		data := numbered(1 << 20)
		for id := range uint64(2) {
			require.NoError(t, b.Expect(0, id, len(data)))
			sendEager(t, a, 0, id, data)
		}
		held, dst := make([]byte, len(data)), make([]byte, len(data))
		done, outcome := result()
		b.Lane(0).Recv(0, device.Bytes(held).WithStream(s), done)
		require.NoError(t, testwait.Finish(t, recv(b.Lane(0), 1, dst)))
		wantBytes(t, data, dst)
		require.Empty(t, outcome)
		release()
		require.ErrorIs(t, testwait.Finish(t, outcome), fault)
		if fault == nil {
			wantBytes(t, data, held)
		}
		requireReturned(t, a, b)
	}
}

// Credit comes back several transfers at once.
func TestEagerCredit(t *testing.T) {
	one, other := tcp(t)
	a, b := eagerPair(t, one, other, 4<<20, false)
	require.False(t, b.CanSendEager(native.MinEager, 0), "a has granted nothing")
	require.False(t, a.CanSendEager(4<<20+1, 0))
	for id := range uint64(4) {
		require.NoError(t, b.Expect(0, id, 1<<20))
		sendEager(t, a, 0, id, make([]byte, 1<<20))
	}
	require.Zero(t, a.Credit())
	for id := range uint64(4) {
		require.NoError(t, testwait.Finish(t, recv(b.Lane(0), id, make([]byte, 1<<20))))
	}
	testwait.Finish(t, a.Returned()) // each is a quarter of the credit
	require.Equal(t, 4<<20, a.Credit())
	a.ForgetCredit()
	require.False(t, a.Lent())
	require.False(t, a.CanSendEager(native.MinEager, 0))
}

// Transfers beyond the credit are sent in order while others are read, and none is staged. The credit is returned
// for them although it is less than a quarter.
func TestEagerWaitsForCredit(t *testing.T) {
	one, other := tcp(t)
	a, b := eagerPair(t, one, other, 900_000, false)
	src, dst := numbered(400_000), make([]byte, 400_000)
	const count = 50
	var sent []<-chan error
	for id := range uint64(count) {
		sent = append(sent, sendEager(t, a, 0, id, src))
	}
	require.Zero(t, a.Credit())
	before := allocated()
	for id := range uint64(count) {
		require.NoError(t, b.Expect(0, id, len(src)))
		require.NoError(t, testwait.Finish(t, recv(b.Lane(0), id, dst)))
		wantBytes(t, src, dst)
		clear(dst)
		require.NoError(t, testwait.Finish(t, sent[id]))
	}
	require.Less(t, allocated()-before, uint64(count*len(src)/2), "on a busy machine a Recv may come after a while")
	requireReturned(t, a, b)
}

// A transfer that waits for credit is sent once its memory is supplied, although those before it are not read.
func TestEagerBeyondCreditIsRequested(t *testing.T) {
	one, other := tcp(t)
	a, b := eagerPair(t, one, other, 1<<20, true)
	src := numbered(1 << 20)
	var sent []<-chan error
	for id := range uint64(4) {
		sent = append(sent, sendEager(t, a, 0, id, src))
		require.NoError(t, b.Expect(0, id, len(src)))
	}
	a.Lane(0).Abort(2, errTest) // it waits for credit
	require.Equal(t, errTest, testwait.Finish(t, sent[2]))
	for _, id := range []uint64{3, 1, 0} {
		dst := make([]byte, len(src))
		require.NoError(t, testwait.Finish(t, recv(b.Lane(0), id, dst)))
		wantBytes(t, src, dst)
		require.NoError(t, testwait.Finish(t, sent[id]))
	}
	require.ErrorIs(t, testwait.Finish(t, recv(b.Lane(0), 2, make([]byte, len(src)))), channel.ErrAborted)
	requireReturned(t, a, b)
}

// A transfer that is cancelled while it waits for credit keeps its place, but not its memory.
func TestEagerCancelledReleasesMemory(t *testing.T) {
	one, _ := tcp(t)
	e := newEnd(t, one, bulk.Config{})
	require.NoError(t, e.HandleCredit(1<<20))
	sendEager(t, e, 0, 0, make([]byte, 1<<20))
	memory := func() weak.Pointer[byte] {
		src := make([]byte, 1<<20)
		sent := sendEager(t, e, 0, 1, src)
		e.Lane(0).Abort(1, errTest)
		require.Equal(t, errTest, testwait.Finish(t, sent))
		return weak.Make(&src[0])
	}()
	require.Eventually(t, func() bool { runtime.GC(); return memory.Value() == nil }, 10*time.Second, time.Millisecond)
	require.Zero(t, e.Credit())
}

// Bytes of the credit that the receiver still has are returned once a transfer is announced that can begin with them.
func TestEagerCreditForAnnounced(t *testing.T) {
	one, other := tcp(t)
	a, b := eagerPair(t, one, other, 1<<20, false)
	var sent []<-chan error
	for id, n := range []int{200_000, 800_000, 70_000} {
		sent = append(sent, sendEager(t, a, 0, uint64(id), make([]byte, n)))
	}
	require.NoError(t, b.Expect(0, 0, 200_000))
	require.NoError(t, testwait.Finish(t, recv(b.Lane(0), 0, make([]byte, 200_000)))) // less than a quarter
	require.NoError(t, b.Expect(0, 1, 800_000))
	require.Zero(t, a.Credit())
	require.NoError(t, b.Expect(0, 2, 70_000))
	require.NoError(t, testwait.Finish(t, sent[2]))
}

// The number of transfers that wait for credit is bounded, and none that is not announced begins before them.
func TestHostileWaiting(t *testing.T) {
	one, _ := tcp(t)
	a := newEnd(t, one, bulk.Config{})
	require.NoError(t, a.HandleCredit(native.MinEager))
	for id := range uint64(1 + native.MaxWaiting) {
		sendEager(t, a, 0, id, make([]byte, native.MinEager))
	}
	require.False(t, a.CanSendEager(native.MinEager, 0))
	near, far := tcp(t)
	e, peer := newEnd(t, near, bulk.Config{Credit: func(int) {}}), raw{t, far}
	e.Grant(2 * native.MinEager)
	for id := range uint64(1 + native.MaxWaiting) {
		require.NoError(t, e.Expect(0, id, 2*native.MinEager))
	}
	require.ErrorIs(t, e.Expect(0, 5000, 2*native.MinEager), channel.ErrProtocol)
	_ = recv(e.Lane(5), 1, make([]byte, 5)) // opens the stream
	peer.write(eagerChunk(6000, 1, 0))
	require.ErrorContains(t, e.wantBroken(t), "before those that wait")
}

// A peer that returns more credit than was used, or grants too much, breaks the protocol.
func TestHostileCredit(t *testing.T) {
	one, _ := tcp(t)
	e := newEnd(t, one, bulk.Config{})
	require.ErrorIs(t, e.HandleCredit(1<<30+1), channel.ErrProtocol)
	require.NoError(t, e.HandleCredit(1<<20))
	require.ErrorIs(t, e.HandleCredit(1), channel.ErrProtocol)
	sendEager(t, e, 0, 1, make([]byte, 1<<20))
	sendEager(t, e, 0, 2, make([]byte, 1<<20))
	require.ErrorIs(t, e.HandleCredit(1<<20+1), channel.ErrProtocol)
	require.ErrorIs(t, e.HandleCredit(1<<63), channel.ErrProtocol)
	require.NoError(t, e.HandleCredit(1<<20))
}

// eagerChunk returns the wire form of an eager chunk.
func eagerChunk(id uint64, n int, status uint32) []byte {
	return broken(chunk(0, id, make([]byte, n), status, false), 14, eagerFlag)
}

// Chunks that exceed the credit or their transfer end the connection with a typed error, also before
// their transfer is announced, and the memory is bounded.
func TestHostileEagerChunks(t *testing.T) {
	const credit = 4 << 20
	repeat := func(n int, p []byte) []byte { return bytes.Repeat(p, n) }
	many := func(n int) (p []byte) {
		for id := range n {
			p = append(p, eagerChunk(uint64(100+id), 1, 0)...)
		}
		return p
	}
	for _, c := range []struct {
		name   string
		credit int
		expect int // of transfer 1
		sent   []byte
		says   string
	}{
		{"no credit", 0, 0, eagerChunk(1, 10, 0), "with a credit of 0"},
		{"longer than the transfer", credit, native.MinEager, repeat(2, eagerChunk(1, native.MinEager-1, 0)), "where 65537"},
		{"longer than any transfer", 8 << 20, 0, repeat(5, eagerChunk(1, 1<<20, 0)), "where 4194304"},
		{"many transfers of one byte", credit, 0, many(credit / native.MinEager), ""},
		{"too many transfers of one byte", credit, 0, many(credit/native.MinEager + 1), "with a credit of 4194304"},
		{"more than the credit", credit, 0, append(repeat(3, eagerChunk(1, 1<<20, 0)), repeat(2, eagerChunk(2, 1<<20, 0))...), "with a credit of 4194304"},
		{"a chunk after the end", credit, 1 << 20, append(eagerChunk(1, 1, 1), eagerChunk(1, 1, 0)...), "after the end"},
		{"not eager", credit, 1 << 20, chunk(0, 1, make([]byte, 10), 0, false), "before its READY"},
		{"unknown status", credit, 1 << 20, eagerChunk(1, 10, 2), "status"},
	} {
		t.Run(c.name, func(t *testing.T) {
			near, far := tcp(t)
			e, peer := newEnd(t, near, bulk.Config{Credit: func(int) {}}), raw{t, far}
			if c.credit > 0 {
				e.Grant(c.credit)
			}
			var outcome <-chan error
			if c.expect > 0 {
				require.NoError(t, e.Expect(0, 1, c.expect))
				if c.name != "a chunk after the end" {
					outcome = recv(e.Lane(0), 1, make([]byte, c.expect))
				}
			}
			other := recv(e.Lane(5), 1, make([]byte, 5)) // so that bytes are staged at once
			before := allocated()
			if c.says != "" {
				_, _ = peer.Write(c.sent) // e may end the connection before it has read all
			} else {
				peer.write(c.sent)
				peer.write(chunk(5, 1, []byte("hello"), 0, false))
				require.NoError(t, testwait.Finish(t, other))
				require.Empty(t, e.broken)
				return
			}
			err := e.wantBroken(t)
			require.ErrorIs(t, err, channel.ErrProtocol)
			require.ErrorContains(t, err, c.says)
			require.Less(t, allocated()-before, uint64(2*credit+len(c.sent)+1<<20))
			require.ErrorIs(t, testwait.Finish(t, other), channel.ErrProtocol)
			if outcome != nil {
				require.ErrorIs(t, testwait.Finish(t, outcome), channel.ErrProtocol)
			}
		})
	}
}

// Announcements that exceed the credit, repeat a transfer, contradict its bytes or have the wrong
// size are protocol errors.
func TestHostileAnnouncements(t *testing.T) {
	near, far := tcp(t)
	e, peer := newEnd(t, near, bulk.Config{Credit: func(int) {}}), raw{t, far}
	require.ErrorIs(t, e.Expect(0, 1, native.MinEager), channel.ErrProtocol)
	e.Grant(1 << 20)
	for _, n := range []int{-1, 0, native.MinEager - 1, native.MaxEager + 1, 1<<20 + 1} {
		require.ErrorIs(t, e.Expect(0, 2, n), channel.ErrProtocol)
	}
	require.NoError(t, e.Expect(0, 3, native.MinEager))
	require.ErrorIs(t, e.Expect(0, 3, native.MinEager), channel.ErrProtocol)
	wrong := recv(e.Lane(0), 3, make([]byte, native.MinEager+1))
	var length *channel.LengthError
	require.ErrorAs(t, testwait.Finish(t, wrong), &length)
	peer.write(eagerChunk(4, 100_000, 0))
	other := recv(e.Lane(5), 1, make([]byte, 5))
	peer.write(chunk(5, 1, []byte("hello"), 0, false))
	require.NoError(t, testwait.Finish(t, other))
	require.ErrorIs(t, e.Expect(0, 4, 99_999), channel.ErrProtocol)
}

// Close ends a reader that waits for memory, and frees staged bytes.
func TestCloseWithEagerBytes(t *testing.T) {
	one, other := tcp(t)
	a, b := eagerPair(t, one, other, 8<<20, false)
	for id := range uint64(3) {
		require.NoError(t, b.Expect(0, id, 1<<20))
		sendEager(t, a, 0, id, make([]byte, 1<<20))
	}
	require.NoError(t, testwait.Finish(t, recv(b.Lane(0), 1, make([]byte, 1<<20))))
	require.NoError(t, b.Close(errTest))
	require.ErrorIs(t, testwait.Finish(t, recv(b.Lane(0), 0, make([]byte, 1<<20))), errTest)
	require.NoError(t, a.Close(nil))
}

// A steady flow of eager transfers that are read in order allocates little: nothing is staged.
func TestEagerInOrderIsNotStaged(t *testing.T) {
	one, other := tcp(t)
	a, b := eagerPair(t, one, other, 8<<20, false)
	src, dst := numbered(1<<20), make([]byte, 1<<20)
	move := func(id uint64) {
		require.NoError(t, b.Expect(0, id, len(src)))
		sent := sendEager(t, a, 0, id, src)
		require.NoError(t, testwait.Finish(t, recv(b.Lane(0), id, dst)))
		require.NoError(t, testwait.Finish(t, sent))
	}
	move(0)
	before := allocated()
	for id := range uint64(50) {
		move(1 + id)
	}
	require.Less(t, allocated()-before, uint64(25<<20), "on a busy machine a Recv may come after a while")
}
