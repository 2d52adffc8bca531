package native

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// chunk returns an encoded chunk as a sender writes it: header, bytes of text, and trailer. If void
// is true the trailer marks the chunk as discarded.
func chunk(h ChunkHeader, text string, void bool) []byte {
	h.Length = len(text)
	p := append(h.Append(nil), text...)
	t := ChunkTrailer{Discarded: void}
	if h.CRC && !void {
		t.Sum = Sum(0, p)
	}
	return t.Append(p)
}

func TestChunk(t *testing.T) {
	for name, h := range map[string]ChunkHeader{
		"small":    {ID: 1, Length: 1},
		"large":    {ID: 1<<64 - 1, Length: MaxChunk, Lane: 1<<16 - 1, CRC: true},
		"checksum": {ID: TransferID(7, 3), Length: 300, Lane: 2, CRC: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := h.Append([]byte("before"))
			require.Len(t, p, len("before")+ChunkHeaderSize)
			got, err := DecodeChunkHeader(p[len("before"):])
			require.NoError(t, err)
			require.Equal(t, h, got)
		})
	}
	for _, trailer := range []ChunkTrailer{{}, {Discarded: true}, {Sum: 1<<32 - 1}, {true, 7}} {
		p := trailer.Append([]byte("before"))
		require.Len(t, p, len("before")+ChunkTrailerSize)
		got, err := DecodeChunkTrailer(p[len("before"):])
		require.NoError(t, err)
		require.Equal(t, trailer, got)
	}
}

func TestTransfer(t *testing.T) {
	require.Equal(t, uint64(0x0000_0000_0007_0003), TransferID(7, 3))
	require.Equal(t, uint64(0xffff_ffff_ffff_ffff), TransferID(1<<48-1, 1<<16-1))
}

func TestChunkChecksum(t *testing.T) {
	h := ChunkHeader{ID: 1, Length: 5, CRC: true}
	sum := Sum(Sum(0, h.Append(nil)), []byte("hello"))
	require.NoError(t, ChunkTrailer{Sum: sum}.Check(h, sum))
	require.ErrorIs(t, ChunkTrailer{Sum: sum}.Check(h, sum+1), ErrChecksum)
	require.ErrorIs(t, ChunkTrailer{}.Check(h, sum), ErrChecksum)
	require.NoError(t, ChunkTrailer{Discarded: true}.Check(h, sum))
	require.ErrorContains(t, ChunkTrailer{Discarded: true, Sum: sum}.Check(h, sum), "where there is none")

	h.CRC = false
	require.NoError(t, ChunkTrailer{}.Check(h, 0))
	require.NoError(t, ChunkTrailer{}.Check(h, sum), "nobody needs to count")
	err := ChunkTrailer{Sum: sum}.Check(h, sum)
	require.ErrorContains(t, err, "where there is none")
	require.NotErrorIs(t, err, ErrChecksum)
}

// TestSum checks that Sum is the CRC32C: it gives a checksum from RFC 3720, and the same result in
// one call or in several. AppendChecksum sums only the bytes from start on.
func TestSum(t *testing.T) {
	require.Equal(t, uint32(0x8a9136aa), Sum(0, make([]byte, 32)))
	require.Equal(t, Sum(0, []byte("hello")), Sum(Sum(0, []byte("he")), []byte("llo")))
	require.Equal(t, append([]byte("xx"), AppendChecksum([]byte("hello"), 0)...), AppendChecksum([]byte("xxhello"), 2))
}

func TestMalformedChunks(t *testing.T) {
	good := ChunkHeader{ID: 1, Length: 1, CRC: true}.Append(nil)
	for _, c := range []struct {
		name, field string
		change      func(p []byte)
	}{
		{"no bytes", "length", func(p []byte) { copy(p[8:], []byte{0, 0, 0, 0}) }},
		{"a byte too many", "length", func(p []byte) { copy(p[8:], []byte{1, 0, 16, 0}) }},
		{"far too many", "length", func(p []byte) { copy(p[8:], []byte{255, 255, 255, 255}) }},
		{"unknown flag", "flags", func(p []byte) { p[14] = 5 }},
		{"reserved byte", "reserved", func(p []byte) { p[15] = 1 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := bytes.Clone(good)
			c.change(p)
			_, err := DecodeChunkHeader(p)
			requireFault(t, err, "CHUNK", c.field)
		})
	}
	_, err := DecodeChunkTrailer([]byte{2, 0, 0, 0, 0, 0, 0, 0})
	requireFault(t, err, "CHUNK", "status")
	_, err = DecodeChunkTrailer([]byte{1, 0, 1, 0, 0, 0, 0, 0})
	requireFault(t, err, "CHUNK", "status")
}

// requireFault requires that err is an Error about this field of this kind of frame.
func requireFault(t *testing.T, err error, frame, field string) {
	t.Helper()
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, []string{frame, field}, []string{e.Frame, e.Field}, err.Error())
}
