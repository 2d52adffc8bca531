package uv_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

func largeWrite(t *testing.T) {
	w, r := loopback(t)
	sent := make([]byte, 16<<20)
	rand.NewChaCha8([32]byte{}).Read(sent)
	var writing sync.WaitGroup
	var werr error
	writing.Go(func() { werr = w.WriteFrames(transport.Frame{sent}) })
	n, err := r.NextFrame()
	require.NoError(t, err)
	got := make([]byte, n)
	require.NoError(t, r.ReadBody(got))
	writing.Wait()
	require.NoError(t, werr)
	require.True(t, bytes.Equal(sent, got))
}

// TestWire checks the bytes on the wire of small, empty, large and mixed frames: each frame is its
// length as eight little-endian bytes and then its body, as in TensorPipe.
func TestWire(t *testing.T) {
	long := bytes.Repeat([]byte("0123456789abcdef"), 1000)
	for _, tc := range []struct {
		name   string
		frames []transport.Frame
		want   string
	}{
		{"small", []transport.Frame{{[]byte("hel"), nil, []byte("lo")}}, "\x05\x00\x00\x00\x00\x00\x00\x00hello"},
		{"empty", []transport.Frame{{}}, "\x00\x00\x00\x00\x00\x00\x00\x00"},
		{"large", []transport.Frame{{long[:5], nil, long[5:]}}, "\x80\x3e\x00\x00\x00\x00\x00\x00" + string(long)},
		{
			"mixed", []transport.Frame{{}, {long}, {[]byte("x")}, {nil}},
			"\x00\x00\x00\x00\x00\x00\x00\x00" + "\x80\x3e\x00\x00\x00\x00\x00\x00" + string(long) +
				"\x01\x00\x00\x00\x00\x00\x00\x00x" + "\x00\x00\x00\x00\x00\x00\x00\x00",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			peer, c := raw(t)
			require.NoError(t, c.WriteFrames(tc.frames...))
			require.NoError(t, c.Close())
			got, err := io.ReadAll(peer)
			require.NoError(t, err)
			require.Equal(t, tc.want, string(got))
		})
	}
}

func TestAbsurdLength(t *testing.T) {
	for _, length := range []uint64{math.MaxInt64 + 1, math.MaxUint64} {
		peer, c := raw(t)
		_, err := peer.Write(binary.LittleEndian.AppendUint64(nil, length))
		require.NoError(t, err)
		for range 2 {
			_, err = c.NextFrame()
			require.ErrorIs(t, err, transport.ErrFrame)
			require.ErrorContains(t, err, fmt.Sprint(length))
		}
	}
}

// TestHugeLengthAllocatesNothing checks that NextFrame returns a length of 2^62 without an error
// and without allocating memory for the body.
func TestHugeLengthAllocatesNothing(t *testing.T) {
	peer, c := raw(t)
	_, err := peer.Write(binary.LittleEndian.AppendUint64(nil, 1<<62))
	require.NoError(t, err)
	var buffered, after runtime.MemStats
	runtime.ReadMemStats(&buffered)
	n, err := c.NextFrame()
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	require.EqualValues(t, 1<<62, n)
	require.Less(t, after.TotalAlloc-buffered.TotalAlloc, uint64(1<<20))
	require.NoError(t, peer.Close())
	require.Equal(t, io.ErrUnexpectedEOF, c.ReadBody(make([]byte, 1)))
}

func TestResetIsRecognised(t *testing.T) {
	peer, c := raw(t)
	require.NoError(t, peer.SetLinger(0))
	require.NoError(t, peer.Close())
	_, err := c.NextFrame()
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.ErrorContains(t, err, c.LocalAddr())
	require.ErrorContains(t, err, c.RemoteAddr())

	err = c.WriteFrames(transport.Frame{[]byte("x")})
	require.ErrorIs(t, err, syscall.EPIPE)
	require.ErrorContains(t, err, c.RemoteAddr())
}

func TestResetWithinAFrameIsRecognised(t *testing.T) {
	peer, c := raw(t)
	_, err := peer.Write(binary.LittleEndian.AppendUint64(nil, 5))
	require.NoError(t, err)
	_, err = c.NextFrame()
	require.NoError(t, err)
	require.NoError(t, peer.SetLinger(0))
	require.NoError(t, peer.Close())
	require.ErrorIs(t, c.ReadBody(make([]byte, 5)), syscall.ECONNRESET)
}

// exchange writes frames to w in one call and reads them from r into dst, which has a buffer of the
// right size for each. An error ends the test.
func exchange(t testing.TB, w, r transport.Conn, frames []transport.Frame, dst [][]byte) {
	done := make(chan error, 1)
	go func() { done <- w.WriteFrames(frames...) }()
	read(t, r, len(frames), dst)
	require.NoError(t, <-done)
}

func read(t testing.TB, r transport.Conn, frames int, dst [][]byte) {
	for i := range frames {
		n, err := r.NextFrame()
		if err != nil || n != int64(len(dst[i])) {
			require.FailNow(t, "bad frame", "%d bytes, %v", n, err)
		}
		if err := r.ReadBody(dst[i : i+1]...); err != nil {
			require.NoError(t, err)
		}
	}
}

func TestNothingIsAllocatedPerBatch(t *testing.T) {
	for name, sizes := range map[string][]int{
		"copied":   {0, 8, 100, 1000},
		"gathered": {0, 8, 30_000, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			w, r := loopback(t)
			var frames []transport.Frame
			var dst [][]byte
			for _, n := range sizes {
				p := make([]byte, n)
				frames = append(frames, transport.Frame{p[:n/2], p[n/2:]})
				dst = append(dst, make([]byte, n))
			}
			// A batch of this size fits into the socket's buffers, so that one
			// goroutine can write and then read.
			round := func() {
				if err := w.WriteFrames(frames...); err != nil {
					panic(err)
				}
				read(t, r, len(frames), dst)
			}
			require.Zero(t, testing.AllocsPerRun(200, round))
		})
	}
}

// TestLargeBatchesBetweenSmallOnes checks that all frames arrive unchanged when calls of
// WriteFrames with thousands of frames, after which the connection drops its memory, alternate with
// calls with few.
func TestLargeBatchesBetweenSmallOnes(t *testing.T) {
	w, r := loopback(t)
	for _, count := range []int{1, 5000, 2, 3000, 0, 1} {
		frames := make([]transport.Frame, count)
		dst := make([][]byte, count)
		for i := range frames {
			frames[i] = transport.Frame{fmt.Append(nil, "frame ", i)}
			dst[i] = make([]byte, len(frames[i][0]))
		}
		exchange(t, w, r, frames, dst)
		for i := range frames {
			require.Equal(t, frames[i][0], dst[i])
		}
	}
}
