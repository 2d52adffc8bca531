package native

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func dump(t testing.TB, s Stream, p []byte) string {
	var out strings.Builder
	require.NoError(t, Dump(&out, s, p))
	return "\n" + out.String()
}

func TestDumpOfMalformedFrames(t *testing.T) {
	message := messages()["inline"].Append(nil, true)
	bent := append([]byte(nil), message...)
	bent[HeaderSize] ^= 1
	for _, c := range []struct {
		name   string
		stream Stream
		bytes  []byte
		want   string // part of the dump
	}{
		{"unknown kind of message", MessageStream, Header{Kind: 9}.Append(nil), "kind                  unknown\n"},
		{"unknown kind of message, verdict", MessageStream, Header{Kind: 9}.Append(nil), "!! native: MESSAGE, kind: 0x09, want 0x01\n"},
		{"unknown control frame", ControlStream, append(Header{Kind: 11, Length: 2}.Append(nil), "ab"...), "kind 0x0b\n"},
		{"unknown control frame, body", ControlStream, append(Header{Kind: 11, Length: 2}.Append(nil), "ab"...), `unknown               "ab"`},
		{"unknown flags", MessageStream, []byte{0, 0, 0, 0, 1, 7, 0, 0}, "checksum, unknown 0x6\n"},
		{"cut header", MessageStream, message[:6], "!! cut\n"},
		{"cut number", MessageStream, message[:HeaderSize+3], "0008  00 00 00                 time left"},
		{"cut body", MessageStream, message[:40], "!! cut\n"},
		{"missing checksum", MessageStream, message[:len(message)-4], "!! native: frame, crc: missing\n"},
		{"missing checksum", ControlStream, Header{Kind: byte(Bulk), CRC: true}.Append(nil), "!! native: frame, crc: missing\n"},
		{"wrong checksum", MessageStream, bent, "checksum does not match"},
		{"body that does not fit", ControlStream, Header{Kind: byte(Cancel)}.Append(nil), "!! native: CANCEL, length: 0, want 8..8\n"},
		{"reserved bytes", ControlStream, put(HeaderSize+15, 1)(controls["ready"].Append(nil, false)), "!! native: READY, reserved"},
		{"cut device", ControlStream, put(0, 12+3)(controls["targets"].Append(nil, false)[:HeaderSize+15]), `"cp"`},
		{"cut chunk header", BulkStream, chunk(ChunkHeader{}, "bytes", false)[:9], "!! cut\n"},
		{"cut chunk", BulkStream, chunk(ChunkHeader{}, "bytes", false)[:19], "!! cut\n"},
		{"cut trailer", BulkStream, chunk(ChunkHeader{}, "bytes", false)[:22], "!! cut\n"},
		{"empty chunk", BulkStream, chunk(ChunkHeader{}, "", false), "!! native: CHUNK, length: 0, want 1..1048576\n"},
		{"bad chunk", BulkStream, put(22, 9)(chunk(ChunkHeader{}, "bytes", false)), "!! native: CHUNK, status: 2304, want 0 or 1\n"},
		{"status", BulkStream, put(21, 9)(chunk(ChunkHeader{}, "bytes", false)), "status                unknown\n"},
		{"wrong sum of a chunk", BulkStream, put(18, 9)(chunk(ChunkHeader{CRC: true}, "bytes", false)), "checksum does not match"},
		{"transfer of the client", BulkStream, chunk(ChunkHeader{ID: TransferID(7, 3)}, "bytes", false), "message 7, place 3\n"},
		{"transfer of the server", BulkStream, chunk(ChunkHeader{ID: 1<<63 | TransferID(7, 3)}, "bytes", false), "message 7 of the server, place 3\n"},
		{"long bytes", BulkStream, chunk(ChunkHeader{}, strings.Repeat("x", 100), false), "bytes                 100 bytes\n"},
		{"long bytes, elided", BulkStream, chunk(ChunkHeader{}, strings.Repeat("x", 100), false), "      .. and 68 more\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Contains(t, dump(t, c.stream, c.bytes), c.want)
		})
	}
}

func TestDumpOfValidFrames(t *testing.T) {
	for name, m := range messages() {
		require.NotContains(t, dump(t, MessageStream, m.Append(nil, true)), "\n      !! ", name)
	}
	for name, c := range controls {
		require.NotContains(t, dump(t, ControlStream, c.Append(nil, true)), "\n      !! ", name)
	}
	require.NotContains(t, dump(t, BulkStream, chunk(ChunkHeader{CRC: true}, "bytes", true)), "\n      !! ")
	require.Equal(t, "\n", dump(t, MessageStream, nil))
}

func TestDumpOfSeveralFrames(t *testing.T) {
	p := controls["cancel"].Append(controls["bulk"].Append(nil, true), false)
	require.Equal(t, `
0000  00 00 00 00              length                0
0004  08                       kind                  BULK
0005  01                       flags                 checksum
0006  00 00                    reserved              0
0008  12 43 2d df              crc                   df2d4312
000c  08 00 00 00              length                8
0010  06                       kind                  CANCEL
0011  00                       flags                 none
0012  00 00                    reserved              0
0014  0a 00 00 00 00 00 00 00  message               10
`, dump(t, ControlStream, p))
}

type failingWriter struct{}

var errDisk = errors.New("disk full")

func (failingWriter) Write([]byte) (int, error) { return 0, errDisk }

func TestDumpReturnsTheWritersError(t *testing.T) {
	require.ErrorIs(t, Dump(failingWriter{}, BulkStream, []byte{1}), errDisk)
}

// FuzzDump dumps arbitrary bytes: Dump must not panic, and the length of its output must be bounded
// by that of the input.
func FuzzDump(f *testing.F) {
	for _, m := range messages() {
		f.Add(int(MessageStream), m.Append(nil, true))
	}
	for _, c := range controls {
		f.Add(int(ControlStream), c.Append(nil, true))
	}
	f.Add(int(BulkStream), chunk(ChunkHeader{CRC: true}, "bytes", true))
	f.Fuzz(func(t *testing.T, s int, p []byte) {
		require.LessOrEqual(t, len(dump(t, Stream(s), p)), 200*len(p)+200)
	})
}
