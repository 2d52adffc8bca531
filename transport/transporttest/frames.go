package transporttest

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

var frameCases = []testCase{
	{"ManyParts", "Conn: Conn carries delimited frames in order: one frame written is one frame read.", manyParts},
	{"ManyFramesPerCall", "Conn: Conn carries delimited frames in order: one frame written is one frame read.", manyFramesPerCall},
	{"NoFrames", "Conn: Conn carries delimited frames in order: one frame written is one frame read.", noFrames},
	{"Empty", "Frame: A frame may be empty.", emptyFrames},
	{"Big", "Conn: Conn carries delimited frames in order: one frame written is one frame read.", bigFrame},
	{"Random", "Conn: Conn carries delimited frames in order: one frame written is one frame read.", randomFrames},
	{"MemoryReusableAfterWrite", "Conn.WriteFrames: When it returns the memory may be reused, even if the peer has not read anything yet.", memoryReusable},
	{"BodyInPieces", "Conn.ReadBody: The body may be read in several calls.", bodyInPieces},
	{"NextFrameBeforeEndOfBody", "Conn.NextFrame: Calling it again before the whole body was read is an error that matches ErrFrame and changes nothing.", nextBeforeTheEnd},
	{"ReadBeyondBody", "Conn.ReadBody: If fewer remain, or there is no current frame, it reads nothing and the error matches ErrFrame.", moreThanRemains},
	{"BodyWithoutFrame", "Conn.ReadBody: If fewer remain, or there is no current frame, it reads nothing and the error matches ErrFrame.", bodyWithoutFrame},
	{"BothWaysAtOnce", "Conn: One goroutine may write while another one reads; two concurrent writers or readers are not allowed.", bothWaysAtOnce},
}

// manyParts checks that a frame arrives complete if it has 5,000 parts, more than one system call
// accepts, of which some are empty.
func manyParts(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	var frame transport.Frame
	var want []byte
	for i := range 5_000 {
		part := []byte{byte(i), byte(i >> 8), 0xab}[:i%4]
		frame = append(frame, part)
		want = append(want, part...)
	}
	written := testwait.Start(func() error { return dialled.WriteFrames(frame) })
	wantFrame(t, accepted, want)
	require.NoError(t, testwait.Finish(t, written))
}

func manyFramesPerCall(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	var frames []transport.Frame
	for i := range 3_000 {
		frames = append(frames, transport.Frame{number(i), nil, number(i * i)})
	}
	written := testwait.Start(func() error { return dialled.WriteFrames(frames...) })
	for i := range 3_000 {
		wantFrame(t, accepted, append(number(i), number(i*i)...))
	}
	require.NoError(t, testwait.Finish(t, written))
}

func noFrames(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	require.NoError(t, dialled.WriteFrames())
	require.NoError(t, dialled.WriteFrames(text("first")))
	wantFrame(t, accepted, []byte("first"))
}

func emptyFrames(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	empties := []transport.Frame{nil, {}, {nil}, {{}, nil, {}}}
	require.NoError(t, dialled.WriteFrames(empties...))
	require.NoError(t, dialled.CloseWrite())
	for range empties {
		n, err := accepted.NextFrame()
		require.NoError(t, err)
		require.Zero(t, n)
		require.NoError(t, accepted.ReadBody())
		require.NoError(t, accepted.ReadBody(nil, []byte{}))
	}
	wantEOF(t, accepted)
}

// random returns n pseudo-random bytes. Calls with the same seed return the same bytes; only the
// low eight bits of seed count.
func random(seed uint64, n int) []byte {
	p := make([]byte, n)
	var key [32]byte
	key[0] = byte(seed)
	rand.NewChaCha8(key).Read(p)
	return p
}

func bigFrame(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	want := random(1, 8<<20+3)
	written := testwait.Start(func() error {
		return dialled.WriteFrames(transport.Frame{want[:17], want[17:]}, text("next"))
	})
	got, err := readFrame(accepted)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
	wantFrame(t, accepted, []byte("next"))
	require.NoError(t, testwait.Finish(t, written))
}

// cut returns a frame with the contents of p in n+1 parts, some possibly empty, which it divides at
// random positions. The parts share p's memory.
func cut(rng *rand.Rand, p []byte, n int) transport.Frame {
	var f transport.Frame
	for range n {
		at := rng.IntN(len(p) + 1)
		f = append(f, p[:at])
		p = p[at:]
	}
	return append(f, p)
}

// randomFrames checks that 300 frames or a few more, of random sizes, arrive in order and
// unchanged. They are written in random parts and several per call, and their bodies are read in
// other random parts.
func randomFrames(t *testing.T, b Backend) {
	const frames = 300
	rng := rand.New(rand.NewPCG(1, 2))
	dialled, accepted := b.connect(t)
	var sent [][]byte
	var batches [][]transport.Frame
	for len(sent) < frames {
		var batch []transport.Frame
		for range rng.IntN(5) {
			p := random(rng.Uint64(), rng.IntN(1<<rng.IntN(18)))
			sent = append(sent, p)
			batch = append(batch, cut(rng, p, rng.IntN(4)))
		}
		batches = append(batches, batch)
	}
	written := testwait.Start(func() error {
		for _, batch := range batches {
			if err := dialled.WriteFrames(batch...); err != nil {
				return err
			}
		}
		return nil
	})
	for _, want := range sent {
		n, err := accepted.NextFrame()
		require.NoError(t, err)
		require.EqualValues(t, len(want), n)
		got := make([]byte, n)
		for _, piece := range cut(rng, got, rng.IntN(4)) {
			require.NoError(t, accepted.ReadBody(cut(rng, piece, rng.IntN(3))...))
		}
		require.True(t, bytes.Equal(want, got))
	}
	require.NoError(t, testwait.Finish(t, written))
}

// memoryReusable checks that the peer reads the contents that a frame's memory had when WriteFrames
// was called, even if the caller changes the memory after the call. WriteFrames must not modify the
// frame.
func memoryReusable(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	p, batch := []byte("before"), make([]transport.Frame, 1)
	batch[0] = transport.Frame{p[:3], p[3:]}
	require.NoError(t, dialled.WriteFrames(batch...))
	require.Equal(t, transport.Frame{[]byte("bef"), []byte("ore")}, batch[0], "WriteFrames must not modify the frame")
	copy(p, "after!")
	batch[0][0], batch[0] = nil, nil
	wantFrame(t, accepted, []byte("before"))
}

func bodyInPieces(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	require.NoError(t, dialled.WriteFrames(text("abcdefghij"), text("next")))
	n, err := accepted.NextFrame()
	require.NoError(t, err)
	require.EqualValues(t, 10, n)
	got := make([]byte, 10)
	require.NoError(t, accepted.ReadBody(got[:1]))
	require.NoError(t, accepted.ReadBody())
	require.NoError(t, accepted.ReadBody(got[1:1], got[1:4], nil, got[4:6]))
	require.NoError(t, accepted.ReadBody(got[6:]))
	require.Equal(t, "abcdefghij", string(got))
	wantFrame(t, accepted, []byte("next"))
}

func nextBeforeTheEnd(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	require.NoError(t, dialled.WriteFrames(text("body"), text("next")))
	_, err := accepted.NextFrame()
	require.NoError(t, err)
	got := make([]byte, 4)
	for i := range got {
		_, err = accepted.NextFrame()
		require.ErrorIs(t, err, transport.ErrFrame)
		require.NoError(t, accepted.ReadBody(got[i:i+1]))
	}
	require.Equal(t, "body", string(got))
	wantFrame(t, accepted, []byte("next"))
}

func moreThanRemains(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	require.NoError(t, dialled.WriteFrames(text("body"), text("next")))
	_, err := accepted.NextFrame()
	require.NoError(t, err)
	got := make([]byte, 8)
	require.ErrorIs(t, accepted.ReadBody(got[:5]), transport.ErrFrame)
	require.ErrorIs(t, accepted.ReadBody(got[:4], got[4:5]), transport.ErrFrame)
	require.NoError(t, accepted.ReadBody(got[:2]))
	require.ErrorIs(t, accepted.ReadBody(got[2:5]), transport.ErrFrame)
	require.Equal(t, "bo\x00\x00\x00\x00\x00\x00", string(got), "a rejected read must not store bytes")
	require.NoError(t, accepted.ReadBody(got[2:4]))
	require.Equal(t, "body", string(got[:4]))
	wantFrame(t, accepted, []byte("next"))
}

func bodyWithoutFrame(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	require.NoError(t, dialled.WriteFrames(text("body")))
	require.ErrorIs(t, accepted.ReadBody(make([]byte, 1)), transport.ErrFrame)
	wantFrame(t, accepted, []byte("body"))
	require.ErrorIs(t, accepted.ReadBody(make([]byte, 1)), transport.ErrFrame)
}

// bothWaysAtOnce checks that both ends of a connection can send more bytes than all buffers hold at
// the same time, and that all frames arrive unchanged.
func bothWaysAtOnce(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	stream := func(c transport.Conn) <-chan error {
		return testwait.Start(func() error {
			for range manyChunks {
				if err := c.WriteFrames(one(chunk)); err != nil {
					return err
				}
			}
			return c.CloseWrite()
		})
	}
	drain := func(c transport.Conn) <-chan int {
		return testwait.Start(func() int { return countChunks(c) })
	}
	sent := []<-chan error{stream(dialled), stream(accepted)}
	got := []<-chan int{drain(dialled), drain(accepted)}
	for i := range sent {
		require.NoError(t, testwait.Finish(t, sent[i]))
		require.Equal(t, manyChunks, testwait.Finish(t, got[i]))
	}
}
