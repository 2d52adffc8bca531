package native

import (
	"encoding/hex"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/nop"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
)

// update makes the test write missing frames to testdata and update the dumps in docs/wire.md. Existing
// frames never change, because ends of that version are in use.
var update = flag.Bool("update", false, "write missing frames of testdata and the dumps of docs/wire.md")

// golden is a frame of testdata.
type golden struct {
	encode func() []byte
	decode func(t *testing.T, p []byte) // decodes p and compares it with the encoded value
	dump   func(w *strings.Builder, p []byte) error
}

// goldens returns all frames of which testdata has the encoding, by the name of the file.
func goldens() map[string]golden {
	out := map[string]golden{
		"message-inline-checksum": goldenMessage(messages()["inline"], true),
		"message-empty-checksum":  goldenMessage(messages()["empty"], true),
		"control-ready-checksum":  goldenControl(controls["ready"], true),
		"control-bulk-checksum":   goldenControl(controls["bulk"], true),

		"chunk":               goldenChunk(ChunkHeader{ID: TransferID(7, 1)}, false),
		"chunk-checksum":      goldenChunk(ChunkHeader{ID: TransferID(7, 1), Lane: 2, CRC: true}, false),
		"chunk-eager":         goldenChunk(ChunkHeader{ID: TransferID(7, 1), Eager: true}, false),
		"chunk-void":          goldenChunk(ChunkHeader{ID: TransferID(1<<40, 65535), Lane: 65535}, true),
		"chunk-void-checksum": goldenChunk(ChunkHeader{ID: TransferID(7, 1), CRC: true}, true),

		"handshake-brochure":            goldenBrochure(),
		"handshake-brochure-compatible": goldenBrochureOf(wire.Marker{Features: wire.FeatureControl}, wire.Probing{}),
		"handshake-answer":              goldenAnswer(),
		"handshake-answer-compatible":   goldenCompatibleAnswer(),
		"handshake-brochure-probe":      goldenBrochureProbe(),
		"handshake-answer-probe":        goldenAnswerProbe(),
	}
	for name, m := range messages() {
		out["message-"+strings.ReplaceAll(name, " ", "-")] = goldenMessage(m, false)
	}
	for name, c := range controls {
		out["control-"+strings.ReplaceAll(name, " ", "-")] = goldenControl(c, false)
	}
	return out
}

func goldenMessage(m *Message, crc bool) golden {
	return golden{
		encode: func() []byte { return m.Append(nil, crc) },
		decode: func(t *testing.T, p []byte) {
			got, err := decoded(t, p, Limits{})
			require.NoError(t, err)
			requireMessage(t, m, got)
			require.Equal(t, p, got.Append(nil, crc))
		},
		dump: func(w *strings.Builder, p []byte) error { return Dump(w, MessageStream, p) },
	}
}

func goldenControl(c Control, crc bool) golden {
	return golden{
		encode: func() []byte { return c.Append(nil, crc) },
		decode: func(t *testing.T, p []byte) {
			got, err := decodedControl(t, p, Limits{})
			require.NoError(t, err)
			require.Equal(t, c, got)
		},
		dump: func(w *strings.Builder, p []byte) error { return Dump(w, ControlStream, p) },
	}
}

func goldenChunk(h ChunkHeader, void bool) golden {
	const text = "the bytes of a chunk"
	h.Length = len(text)
	return golden{
		encode: func() []byte { return chunk(h, text, void) },
		decode: func(t *testing.T, p []byte) {
			got, err := DecodeChunkHeader(p)
			require.NoError(t, err)
			require.Equal(t, h, got)
			front := p[:ChunkHeaderSize+h.Length]
			require.Equal(t, text, string(front[ChunkHeaderSize:]))
			trailer, err := DecodeChunkTrailer(p[len(front):])
			require.NoError(t, err)
			require.Equal(t, void, trailer.Discarded)
			require.NoError(t, trailer.Check(h, Sum(0, front)))
		},
		dump: func(w *strings.Builder, p []byte) error { return Dump(w, BulkStream, p) },
	}
}

// anyCPU returns the device descriptors of the channel basic: "any" for cpu:0.
func anyCPU() map[device.Device]string { return map[device.Device]string{device.CPU(): "any"} }

func goldenBrochure() golden {
	return goldenBrochureOf(wire.Marker{MaxVersion: wire.VersionNative, Features: wire.FeatureControl}, wire.Probing{})
}

// shownByCMA is an offer of the channel cma: process 42 has these bytes at that address.
var shownByCMA = map[string][]byte{"cma": []byte("\x2a\x00\x00\x00" + "\x00\x00\x01\x00\xc0\x00\x00\x00" + "16 random bytes!")}

func goldenBrochureProbe() golden {
	return goldenBrochureOf(wire.Marker{MaxVersion: wire.VersionNative, Features: wire.FeatureControl},
		wire.Probing{Offers: shownByCMA})
}

func goldenAnswerProbe() golden {
	return goldenAnswerOf(wire.Marker{MinVersion: wire.VersionNative, MaxVersion: wire.VersionNative, Features: wire.FeatureControl},
		wire.Probing{Offers: shownByCMA, Refused: map[string]string{"warp": "no drive"}}, map[uint64]uint64{wire.BulkConnection: 41}, nil)
}

func requireProbing(t *testing.T, want, got wire.Probing) {
	t.Helper()
	require.Len(t, got.Offers, len(want.Offers))
	for name, offer := range want.Offers {
		require.Equal(t, offer, got.Offers[name])
	}
	require.Len(t, got.Refused, len(want.Refused))
	for name, reason := range want.Refused {
		require.Equal(t, reason, got.Refused[name])
	}
}

func requireAnswerProbing(t *testing.T, want wire.Probing, p []byte) {
	t.Helper()
	got, err := wire.DecodeBrochureAnswer(p, wire.Limits{})
	require.NoError(t, err)
	requireProbing(t, want, got.Probing())
}

func goldenBrochureOf(marker wire.Marker, probing wire.Probing) golden {
	m := &wire.Brochure{
		TransportDomainDescriptors: map[string]string{"uv": "uv:*"},
		ChannelDeviceDescriptors:   map[string]map[device.Device]string{"basic": anyCPU()},
	}
	m.Mark(marker)
	m.AddProbing(probing)
	return golden{
		encode: func() []byte { return m.Append(nil) },
		decode: func(t *testing.T, p []byte) {
			got, err := wire.DecodeBrochure(p, wire.Limits{})
			require.NoError(t, err)
			require.Equal(t, m, got)
			found, ok := got.Marker()
			require.True(t, ok)
			require.Equal(t, marker, found)
			requireProbing(t, probing, got.Probing())
		},
		dump: dumpNop,
	}
}

func goldenAnswer() golden {
	return goldenAnswerOf(wire.Marker{MinVersion: wire.VersionNative, MaxVersion: wire.VersionNative, Features: wire.FeatureControl},
		wire.Probing{}, map[uint64]uint64{wire.BulkConnection: 41}, nil)
}

func goldenCompatibleAnswer() golden {
	return goldenAnswerOf(wire.Marker{Features: wire.FeatureControl}, wire.Probing{},
		map[uint64]uint64{wire.ReplyConnection: 41, wire.ControlConnection: 42}, []uint64{43})
}

func goldenAnswerOf(marker wire.Marker, probing wire.Probing, ids map[uint64]uint64, channel []uint64) golden {
	m := &wire.BrochureAnswer{
		Transport:                 "uv",
		Address:                   "127.0.0.1:7000",
		TransportRegistrationIDs:  ids,
		TransportDomainDescriptor: "uv:*",
		ChannelRegistrationIDs:    map[string][]uint64{"basic": channel},
		ChannelDeviceDescriptors:  map[string]map[device.Device]string{"basic": anyCPU()},
		ChannelForDevicePair:      map[wire.DevicePair]string{{Server: device.CPU(), Client: device.CPU()}: "basic"},
	}
	m.Mark(marker)
	m.AddProbing(probing)
	return golden{
		encode: func() []byte { return m.Append(nil) },
		decode: func(t *testing.T, p []byte) {
			requireAnswerProbing(t, probing, p)
			got, err := wire.DecodeBrochureAnswer(p, wire.Limits{})
			require.NoError(t, err)
			require.Equal(t, m, got)
			found, ok := got.Marker()
			require.True(t, ok)
			require.Equal(t, marker, found)
		},
		dump: dumpNop,
	}
}

func dumpNop(w *strings.Builder, p []byte) error { return nop.Dump(w, p) }

const goldenDir = "testdata/v1"

// TestGoldenFrames checks that the encoding of each frame equals the one in testdata, which does
// not change within version 1, and can be decoded. Each file in testdata has a case here.
func TestGoldenFrames(t *testing.T) {
	for name, g := range goldens() {
		t.Run(name, func(t *testing.T) {
			if *update {
				addGolden(t, name, g.encode())
			}
			p := readGolden(t, name)
			g.decode(t, p)
			require.Equal(t, p, g.encode())
		})
	}
	require.Equal(t, slices.Sorted(maps.Keys(goldens())), goldenFiles(t), "every file has a case, every case a file")
}

func goldenFiles(t *testing.T) (names []string) {
	entries, err := os.ReadDir(goldenDir)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".hex"))
	}
	slices.Sort(names)
	return names
}

// readGolden returns the frame with this name in testdata. The file has the frame in hexadecimal;
// spaces and line breaks are ignored.
func readGolden(t *testing.T, name string) []byte {
	text, err := os.ReadFile(filepath.Join(goldenDir, name+".hex"))
	require.NoError(t, err)
	p, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	require.NoError(t, err)
	return p
}

// addGolden writes p to testdata as the frame with this name. If there is a file with this name, it
// does nothing, so that the encoding of a frame cannot change.
func addGolden(t *testing.T, name string, p []byte) {
	path := filepath.Join(goldenDir, name+".hex")
	if _, err := os.Stat(path); err == nil {
		return
	}
	var text strings.Builder
	for row := range slices.Chunk(p, 16) {
		fmt.Fprintf(&text, "% x\n", row)
	}
	require.NoError(t, os.MkdirAll(goldenDir, 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text.String()), 0o644))
}
