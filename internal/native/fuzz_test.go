package native

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// bounded calls decode and fails the test if decode allocates more than factor*size bytes and a
// constant.
func bounded(t *testing.T, size, factor int, decode func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	decode()
	runtime.ReadMemStats(&after)
	require.LessOrEqual(t, after.TotalAlloc-before.TotalAlloc, uint64(factor*size+64<<10))
}

func FuzzMessage(f *testing.F) {
	for _, m := range messages() {
		f.Add(m.Append(nil, false)[HeaderSize:])
	}
	f.Add(messages()["compressed"].Append(nil, false)[HeaderSize : HeaderSize+100])
	good := messages()["inline"].Append(nil, false)[HeaderSize:]
	for _, c := range malformed {
		f.Add(c.change(append([]byte(nil), good...)))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var m Message
		var err error
		bounded(t, len(body), 6, func() { err = m.Decode(body, Limits{}) })
		if err != nil {
			require.Zero(t, m)
			return
		}
		payloads, tensors := CountParts(body)
		require.Equal(t, []int{len(m.Payloads), len(m.Tensors)}, []int{payloads, tensors})
		require.NoError(t, m.Check(Limits{}))
		require.Equal(t, body, m.Append(nil, false)[HeaderSize:])
	})
}

func FuzzControl(f *testing.F) {
	for _, c := range controls {
		f.Add(byte(c.Kind), c.Append(nil, false)[HeaderSize:])
	}
	f.Add(byte(Targets), []byte("12345678\xff\xff\xff\xff\x03cpu0000"))
	f.Add(byte(0x42), []byte("later"))
	f.Fuzz(func(t *testing.T, kind byte, body []byte) {
		var c Control
		var err error
		bounded(t, len(body), 8, func() { c, err = DecodeControl(ControlKind(kind), body, Limits{}) })
		if _, known := controlNames[ControlKind(kind)]; err == nil && known {
			require.Equal(t, body, c.Append(nil, false)[HeaderSize:])
		}
	})
}

func FuzzHeader(f *testing.F) {
	for _, m := range messages() {
		f.Add(m.Append(nil, true))
	}
	for _, c := range controls {
		f.Add(c.Append(nil, true))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) < HeaderSize {
			return
		}
		for _, decode := range []func([]byte, Limits) (Header, error){DecodeMessageHeader, DecodeControlHeader} {
			h, err := decode(p, Limits{})
			if err != nil {
				continue
			}
			require.Equal(t, p[:HeaderSize], h.Append(nil))
			if rest := p[HeaderSize:]; len(rest) >= h.Remaining() {
				_, err = h.Body(rest)
				sum := AppendChecksum(p[:HeaderSize+h.Length:HeaderSize+h.Length], 0)
				require.Equal(t, !h.CRC || string(sum) == string(p[:len(sum)]), err == nil)
			}
		}
	})
}

func FuzzChunk(f *testing.F) {
	f.Add(chunk(ChunkHeader{ID: 1}, "bytes", false))
	f.Add(chunk(ChunkHeader{ID: 1, CRC: true, Lane: 7}, "bytes", false))
	f.Add(chunk(ChunkHeader{ID: 1, CRC: true}, "bytes", true))
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) < ChunkHeaderSize {
			return
		}
		h, err := DecodeChunkHeader(p)
		if err != nil {
			return
		}
		require.Equal(t, p[:ChunkHeaderSize], h.Append(nil))
		rest := p[ChunkHeaderSize:]
		if len(rest) < h.Length+ChunkTrailerSize {
			return
		}
		trailer, err := DecodeChunkTrailer(rest[h.Length:])
		if err == nil && trailer.Check(h, Sum(0, p[:ChunkHeaderSize+h.Length])) == nil {
			require.Equal(t, chunk(h, string(rest[:h.Length]), trailer.Discarded), p[:ChunkHeaderSize+h.Length+ChunkTrailerSize])
		}
	})
}
