package native

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// small returns a new message with short metadata, one payload and one tensor of 8 bytes, both
// inline.
func small() *Message {
	return &Message{
		Metadata: []byte("sixteen bytes md"),
		Payloads: []Payload{{Length: 8, Inline: true, Data: []byte("payload!")}},
		Tensors:  []Tensor{{Length: 8, Inline: true, Data: []byte("tensor!!"), Source: device.CPU()}},
	}
}

// roundTrip encodes m into the memory of buf, with a checksum if crc is true, and decodes the frame
// into the Message into, which then refers to buf. It returns the error of decoding.
func roundTrip(m, into *Message, buf []byte, crc bool) error {
	frame := m.Append(buf[:0], crc)
	h, err := DecodeMessageHeader(frame, Limits{})
	if err != nil {
		return err
	}
	body, err := h.Body(frame[HeaderSize : HeaderSize+h.Remaining()])
	if err != nil {
		return err
	}
	return into.Decode(body, Limits{})
}

func TestMessagesDoNotAllocate(t *testing.T) {
	buf := make([]byte, 0, 1024)
	for name, m := range messages() {
		for _, crc := range []bool{false, true} {
			var into Message
			require.Zero(t, testing.AllocsPerRun(100, func() {
				if m.Check(Limits{}) != nil || roundTrip(m, &into, buf, crc) != nil {
					t.Fail()
				}
				into.Reset()
			}), "%s, checksum %v", name, crc)
		}
	}
}

func TestControlsDoNotAllocate(t *testing.T) {
	buf := make([]byte, 0, 1024)
	allocs := map[ControlKind]float64{
		Goodbye: 1, Abort: 1, // for the text
		Targets: 2, // for the slice of devices and for a kind that is not cached
	}
	for name, c := range controls {
		if allocs[c.Kind] > 0 {
			continue
		}
		for _, crc := range []bool{false, true} {
			require.Zero(t, testing.AllocsPerRun(100, func() {
				frame := c.Append(buf, crc)
				h, _ := DecodeControlHeader(frame, Limits{})
				body, _ := h.Body(frame[HeaderSize:])
				if got, err := DecodeControl(ControlKind(h.Kind), body, Limits{}); err != nil || got.Number != c.Number {
					t.Fail()
				}
			}), "%s, checksum %v", name, crc)
		}
	}
}

func TestChunksDoNotAllocate(t *testing.T) {
	buf := make([]byte, 0, 1024)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		p := ChunkHeader{ID: 1, Length: 8, CRC: true}.Append(buf)
		p = append(p, "8 bytes."...)
		p = ChunkTrailer{Sum: Sum(0, p)}.Append(p)
		h, err := DecodeChunkHeader(p)
		trailer, err2 := DecodeChunkTrailer(p[ChunkHeaderSize+h.Length:])
		if err != nil || err2 != nil || trailer.Check(h, Sum(0, p[:ChunkHeaderSize+h.Length])) != nil {
			t.Fail()
		}
	}))
}

func BenchmarkSmallMessage(b *testing.B) {
	m, buf := small(), make([]byte, 0, 1024)
	for _, c := range []struct {
		name string
		crc  bool
	}{{"plain", false}, {"checksum", true}} {
		b.Run(c.name, func(b *testing.B) {
			var into Message
			b.ReportAllocs()
			for b.Loop() {
				if err := roundTrip(m, &into, buf, c.crc); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkControl(b *testing.B) {
	buf := make([]byte, 0, 64)
	b.ReportAllocs()
	for b.Loop() {
		frame := Control{Kind: Ready, Number: 7, Lane: 1}.Append(buf, false)
		h, _ := DecodeControlHeader(frame, Limits{})
		if _, err := DecodeControl(ControlKind(h.Kind), frame[HeaderSize:], Limits{}); err != nil {
			b.Fatal(err)
		}
	}
}
