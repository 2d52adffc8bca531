package bulk_test

import (
	"bytes"
	"io"
	"net"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/internal/bulk"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// An announcement that is shorter than a chunk whose bytes the reader has not taken yet is a protocol
// error, as it is after the chunk.
func TestHostileAnnouncementOfBegunChunk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		e, peer := newEnd(t, plain{near}, bulk.Config{Credit: func(int) {}}), raw{t, plain{far}}
		e.Grant(4 << 20)
		first := recv(e.Lane(5), 1, make([]byte, 5))
		peer.write(chunk(5, 1, []byte("hello"), 0, false))
		require.NoError(t, <-first)
		peer.write(eagerChunk(1, 200_000, 0)[:headerSize])
		synctest.Wait()
		var length *channel.LengthError
		err := e.Expect(0, 1, 100_000)
		require.ErrorIs(t, err, channel.ErrProtocol)
		require.ErrorAs(t, err, &length)
		require.EqualValues(t, 200_000, length.Got)
	})
}

// The discarded chunk that ends an aborted eager transfer is sent although the write that was to send
// it is interrupted, because another transfer is aborted.
func TestEagerEndsAfterInterruptedWrite(t *testing.T) {
	for _, begun := range []int{0, 1, headerSize + 1} { // bytes of transfer 1 that were read before
		near, far := net.Pipe()
		e, peer := newEnd(t, gathering{plain{near}}, bulk.Config{}), raw{t, plain{far}}
		require.NoError(t, e.HandleCredit(8<<20))
		data := numbered(native.MinEager)
		sent := []<-chan error{sendEager(t, e, 3, 0, data)}
		peer.read(1) // the chunk of transfer 0 is on its way
		for id := range uint64(3) {
			sent = append(sent, sendEager(t, e, 3, 1+id, data))
		}
		e.Lane(3).Abort(2, errTest)
		peer.read(headerSize + len(data) + trailerSize - 1)
		require.NoError(t, testwait.Finish(t, sent[0]))
		head := peer.read(begun)
		e.Lane(3).Abort(1, errTest)
		require.Equal(t, errTest, testwait.Finish(t, sent[1]))
		src := io.MultiReader(bytes.NewReader(head), peer)
		voids := map[uint64]bool{}
		for range 3 {
			h, void := readChunk(t, src)
			require.NotContains(t, voids, h.ID)
			voids[h.ID] = void
		}
		require.Equal(t, map[uint64]bool{1: true, 2: true, 3: false}, voids)
		require.NoError(t, testwait.Finish(t, sent[3]))
		require.NoError(t, e.Close(nil))
	}
}

// An eager Send whose memory becomes invalid ends at the peer too.
func TestEagerSendOfFailedMemory(t *testing.T) {
	kind := delayed.New("npu", 1)
	t.Cleanup(kind.Close)
	s, err := kind.NewStream(kind.Devices()[0])
	require.NoError(t, err)
	require.NoError(t, s.(*delayed.Stream).Launch(func(...[]byte) error { return io.ErrNoProgress }))
	one, other := tcp(t)
	a, b := eagerPair(t, one, other, 8<<20, true)
	data := numbered(1 << 20)
	require.NoError(t, b.Expect(0, 7, len(data)))
	require.True(t, a.CanSendEager(len(data), 0))
	done, sent := result()
	a.SendEager(0, 7, device.Bytes(data).WithStream(s), done)
	require.ErrorIs(t, testwait.Finish(t, sent), io.ErrNoProgress)
	require.ErrorIs(t, testwait.Finish(t, recv(b.Lane(0), 7, make([]byte, len(data)))), channel.ErrAborted)
	requireReturned(t, a, b)
}
