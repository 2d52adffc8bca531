package native

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/compress"
)

func cuda(i int) device.Device { return device.Device{Kind: "cuda", Index: i} }

// messages returns new messages by name, each of which shows one feature, such as a deadline,
// devices or compression.
func messages() map[string]*Message {
	large := uint64(3 << 30)
	return map[string]*Message{
		"empty":         {},
		"metadata only": {Metadata: []byte("sixteen bytes md")},
		"deadline":      {Timeout: 1500 * time.Millisecond},
		"inline": {
			Metadata: []byte("meta"),
			Payloads: []Payload{{Length: 8, Inline: true, Metadata: []byte("p"), Data: []byte("payload!")}},
			Tensors: []Tensor{{
				Length: 8, Inline: true, Metadata: []byte("t"), Data: []byte("tensor!!"), Source: device.CPU(), Target: device.CPU(),
			}},
		},
		"large": {
			Payloads: []Payload{{Length: large, Metadata: []byte("p0")}, {Length: 2, Inline: true, Data: []byte("p1")}},
			Tensors:  []Tensor{{Length: large, Source: device.CPU(), Metadata: []byte("t0")}},
		},
		"devices": {
			Tensors: []Tensor{
				{Length: large, Source: cuda(3), Target: device.CPU()},
				{Length: large, Source: device.CPU(), Target: cuda(math.MaxInt32)},
				{Length: large, Source: device.Device{Kind: "npu", Index: 1}},
			},
		},
		"joined": {
			Tensors: []Tensor{
				{Length: 1 << 20, Source: device.CPU(), Target: device.CPU()},
				{Length: 2, Inline: true, Source: device.CPU(), Target: device.CPU(), Data: []byte("t1")},
				{Length: 1 << 20, Joined: true, Source: device.CPU(), Target: device.CPU()},
			},
		},
		"eager": {
			Payloads: []Payload{{Length: 1 << 20, Eager: true}},
			Tensors: []Tensor{
				{Length: 1 << 19, Eager: true, Source: device.CPU(), Target: device.CPU()},
				{Length: 1 << 19, Joined: true, Source: device.CPU(), Target: device.CPU()},
			},
		},
		"compressed": {
			Metadata: []byte("meta"),
			Payloads: []Payload{
				{Length: 1000, Inline: true, Codec: compress.S2, CompressedLength: 20, Data: []byte("\x10\x00\x00\x00\xe8\a\x18tensor \x11\a\x19\x00\xd5\x02")},
				{Length: 2, Inline: true, Data: []byte("p1")},
			},
			Tensors: []Tensor{{Length: large, Codec: compress.Zstd, CompressedLength: 1 << 30, Source: device.CPU(), Target: device.CPU()}},
		},
		"empty parts": {
			Payloads: []Payload{{Inline: true}, {Inline: true, Metadata: []byte("of nothing")}},
			Tensors:  []Tensor{{Inline: true, Source: cuda(1)}, {Inline: true, Source: cuda(0), Target: cuda(2)}},
		},
	}
}

// decoded decodes frame, a whole frame of the message stream, and returns the message, which refers
// to frame, or the error of the header, the checksum or the body. It requires that frame has the
// length that the header gives.
func decoded(t testing.TB, frame []byte, limits Limits) (*Message, error) {
	h, err := DecodeMessageHeader(frame, limits)
	if err != nil {
		return nil, err
	}
	require.Len(t, frame, HeaderSize+h.Remaining())
	body, err := h.Body(frame[HeaderSize:])
	if err != nil {
		return nil, err
	}
	m := new(Message)
	return m, m.Decode(body, limits)
}

// requireMessage requires that want and got are equal in all fields that are sent.
func requireMessage(t testing.TB, want, got *Message) {
	t.Helper()
	plain := func(m *Message) Message {
		c := Message{Timeout: m.Timeout, Metadata: m.Metadata}
		c.Payloads = append(c.Payloads, m.Payloads...) // nil if there are none
		c.Tensors = append(c.Tensors, m.Tensors...)
		return c
	}
	require.Equal(t, plain(want), plain(got))
}

func TestMessages(t *testing.T) {
	for name, m := range messages() {
		for _, crc := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				require.NoError(t, m.Check(Limits{}))
				frame := m.Append(nil, crc)
				if crc {
					require.Len(t, frame, m.EncodedSize()+SumSize)
				} else {
					require.Len(t, frame, m.EncodedSize())
				}
				got, err := decoded(t, frame, Limits{})
				require.NoError(t, err)
				requireMessage(t, m, got)
				require.Equal(t, frame, got.Append(nil, crc))
			})
		}
	}
}

// TestCountParts checks that CountParts returns the announced numbers of payloads and tensors, but
// not more than the body has space for, and zeros if the body has no complete fixed part.
func TestCountParts(t *testing.T) {
	body := messages()["large"].Append(nil, false)[HeaderSize:]
	payloads, tensors := CountParts(body)
	require.Equal(t, [2]int{2, 1}, [2]int{payloads, tensors})
	binary.LittleEndian.PutUint64(body[12:], math.MaxUint64)
	payloads, tensors = CountParts(body)
	require.Equal(t, [2]int{len(body) / 16, len(body) / 32}, [2]int{payloads, tensors})
	payloads, tensors = CountParts(body[:23])
	require.Equal(t, [2]int{}, [2]int{payloads, tensors})
}

// TestAppendDescriptor checks that a frame of AppendDescriptor, to which the caller appends the
// inline bytes and the checksum, equals the frame of Append.
func TestAppendDescriptor(t *testing.T) {
	m := messages()["inline"]
	frame := append(m.AppendDescriptor([]byte("before"), true), "payload!tensor!!"...)
	frame = AppendChecksum(frame, len("before"))
	require.Equal(t, m.Append([]byte("before"), true), frame)
}

func TestEmptyPartsAreInline(t *testing.T) {
	m := Message{Payloads: []Payload{{}}, Tensors: []Tensor{{Source: device.CPU()}}}
	got, err := decoded(t, m.Append(nil, false), Limits{})
	require.NoError(t, err)
	require.True(t, got.Payloads[0].Inline)
	require.True(t, got.Tensors[0].Inline)
}

func TestExpiredTimeoutIsEncoded(t *testing.T) {
	for deadline, want := range map[time.Duration]time.Duration{0: 0, 1: 1, -time.Hour: 1, math.MaxInt64: math.MaxInt64} {
		got, err := decoded(t, (&Message{Timeout: deadline}).Append(nil, false), Limits{})
		require.NoError(t, err)
		require.Equal(t, want, got.Timeout)
	}
}

// TestMessageIsReused checks that decoding different messages into the same Message gives the same
// results as decoding into new ones, with increasing and decreasing numbers of parts.
func TestMessageIsReused(t *testing.T) {
	var m Message
	for range 3 {
		for name, want := range messages() {
			frame := want.Append(nil, false)
			require.NoError(t, m.Decode(frame[HeaderSize:], Limits{}), name)
			requireMessage(t, want, &m)
		}
	}
}

func TestFailedDecodeChangesNothing(t *testing.T) {
	want := messages()["inline"]
	var m Message
	require.NoError(t, m.Decode(want.Append(nil, false)[HeaderSize:], Limits{}))
	broken := messages()["devices"].Append(nil, false)[HeaderSize:]
	require.Error(t, m.Decode(broken[:len(broken)-1], Limits{}))
	requireMessage(t, want, &m)
}

func TestReset(t *testing.T) {
	var m Message
	require.NoError(t, m.Decode(messages()["devices"].Append(nil, false)[HeaderSize:], Limits{}))
	require.NoError(t, m.Decode(messages()["inline"].Append(nil, false)[HeaderSize:], Limits{}))
	m.Reset()
	require.Zero(t, m.Timeout)
	require.Nil(t, m.Metadata)
	require.Empty(t, m.Payloads)
	require.Empty(t, m.Tensors)
	require.Equal(t, make([]Payload, cap(m.Payloads)), m.Payloads[:cap(m.Payloads)])
	require.GreaterOrEqual(t, cap(m.Tensors), 3, "a little memory is kept")
	require.Equal(t, make([]Tensor, cap(m.Tensors)), m.Tensors[:cap(m.Tensors)], "also of what came before")

	m.Payloads = make([]Payload, maxRetainedParts+1)
	m.Tensors = make([]Tensor, maxRetainedParts+1)
	m.Reset()
	require.Nil(t, m.Payloads)
	require.Nil(t, m.Tensors)
}

// TestPartsHaveNoSpareCapacity checks that the slices of a decoded message have no spare capacity,
// so that an append to one does not overwrite the next part of the frame.
func TestPartsHaveNoSpareCapacity(t *testing.T) {
	got, err := decoded(t, messages()["inline"].Append(nil, false), Limits{})
	require.NoError(t, err)
	for _, p := range [][]byte{got.Metadata, got.Payloads[0].Metadata, got.Payloads[0].Data, got.Tensors[0].Metadata, got.Tensors[0].Data} {
		require.Equal(t, len(p), cap(p))
	}
}

func TestKindsAreInterned(t *testing.T) {
	var c kindCache
	for range 2 {
		for i := range 3 * len(c.kinds) {
			k := strings.Repeat("k", i)
			require.Equal(t, k, c.intern([]byte(k)))
		}
	}
	known := []byte(strings.Repeat("k", 3*len(c.kinds)-1))
	require.Zero(t, testing.AllocsPerRun(100, func() { c.intern(known) }))
}

// malformed lists invalid bodies by the field that is wrong. The entries of the message: one payload at
// 24, one tensor at 40, the kinds at 72.
var malformed = []struct {
	name, field string
	change      func(p []byte) []byte
}{
	{"cut front", "length", func(p []byte) []byte { return p[:23] }},
	{"nothing", "length", func(p []byte) []byte { return nil }},
	{"time beyond all times", "time left", put(7, 0x80)},
	{"reserved number", "reserved", put(20, 1)},
	{"more payloads than bytes", "length", put(13, 1)},
	{"more tensors than bytes", "length", put(16, 3)},
	{"more payloads than allowed", "payloads", put(15, 1)},
	{"more tensors than allowed", "tensors", put(19, 1)},
	{"metadata of another length", "length", put(8, 5)},
	{"metadata beyond the end", "length", put(11, 0xff)},
	{"cut", "length", func(p []byte) []byte { return p[:len(p)-1] }},
	{"too long", "length", func(p []byte) []byte { return append(p, 0) }},

	{"payload of another length", "length", put(24, 9)},
	{"payload beyond the end", "payload 0 length", put(27, 1)},
	{"payload beyond all memory", "payload 0 length", put(31, 0x80)},
	{"payload with other metadata", "length", put(32, 2)},
	{"payload with an unknown flag", "payload 0 flags", put(36, 5)},
	{"inline payload that is eager", "payload 0 flags", put(36, 3)},
	{"reserved byte of a payload", "payload 0 reserved", put(38, 1)},
	{"reserved byte of a payload, far end", "payload 0 reserved", put(39, 1)},
	{"payload of an unknown codec", "payload 0 codec", put(37, 3)},
	{"payload shorter than its form", "payload 0 compressed length", put(37, 1)},
	{"payload that is inline no more", "length", put(36, 0)},
	{"empty payload elsewhere", "payload 0 flags", func(p []byte) []byte { return put(24, 0)(put(36, 0)(p)) }},

	{"tensor of another length", "length", put(40, 9)},
	{"tensor beyond the end", "tensor 0 length", put(43, 1)},
	{"tensor beyond all memory", "tensor 0 length", put(47, 0x80)},
	{"tensor with other metadata", "length", put(48, 2)},
	{"tensor with an unknown flag", "tensor 0 flags", put(52, 19)},
	{"inline tensor that is eager", "tensor 0 flags", put(52, 11)},
	{"eager tensor to an open target", "tensor 0 flags", put(52, 8)},
	{"joined tensor that is eager", "tensor 0 flags", put(52, 14)},
	{"inline tensor that is joined", "tensor 0 flags", put(52, 7)},
	{"tensor that is joined to none", "tensor 0 flags", put(52, 6)},
	{"tensor without source", "tensor 0 source kind", put(53, 0)},
	{"source of another length", "length", put(53, 4)},
	{"long source", "tensor 0 device kind", put(53, 65)},
	{"named target without kind", "tensor 0 target kind", put(54, 0)},
	{"long target", "tensor 0 device kind", put(54, 255)},
	{"tensor of an unknown codec", "tensor 0 codec", put(55, 255)},
	{"tensor shorter than its form", "tensor 0 compressed length", put(55, 2)},
	{"negative source index", "tensor 0 device index", put(59, 0x80)},
	{"negative target index", "tensor 0 device index", put(63, 0x80)},
	{"open target with kind", "tensor 0 target kind", put(52, flagInline)},
	{"open target with index", "tensor 0 target index", func(p []byte) []byte { return put(52, flagInline)(put(54, 0)(put(60, 1)(p))) }},
	{"reserved number of a tensor", "tensor 0 reserved", put(64, 1)},
	{"reserved number of a tensor, far end", "tensor 0 reserved", put(71, 1)},
	{"empty tensor elsewhere", "tensor 0 flags", func(p []byte) []byte { return put(40, 0)(put(52, flagNamed)(p)) }},
}

// TestCompressedPartOfTheGoldenMessage checks that the compressed payload of the frame in testdata
// can be decompressed and has the right bytes.
func TestCompressedPartOfTheGoldenMessage(t *testing.T) {
	part := make([]byte, 1000)
	compressed := messages()["compressed"].Payloads[0]
	require.NoError(t, compress.New(1).Decompress(compressed.Codec, [][]byte{part}, compressed.Data, func() error { return nil }))
	require.Equal(t, strings.Repeat("tensor ", 143)[:1000], string(part))
}

// TestMalformedCompressedLengths checks that Decode rejects a message whose compressed lengths are
// missing or invalid, with an Error about the right field, and leaves the Message unchanged. The
// lengths are at offset 24+2*16+32 of the body.
func TestMalformedCompressedLengths(t *testing.T) {
	const compressedLengths = 88
	good := messages()["compressed"].Append(nil, false)[HeaderSize:]
	for _, c := range []struct {
		name, field string
		change      func(p []byte) []byte
	}{
		{"another length", "length", put(compressedLengths, 19)},
		{"nothing", "payload 0 compressed length", put(compressedLengths, 0)},
		{"as long as the part", "payload 0 compressed length", func(p []byte) []byte { return put(compressedLengths, 0xe8)(put(compressedLengths+1, 3)(p)) }},
		{"beyond all memory", "payload 0 compressed length", put(compressedLengths+7, 0xff)},
		{"longer than the frame", "payload 0 length", func(p []byte) []byte { return put(24, 0xff)(put(compressedLengths, 0xe8)(p)) }},
		{"longer than the tensor", "tensor 0 compressed length", put(compressedLengths+11, 0xc0)},
		{"of one part less", "payload 0 length", put(37, 0)},
		{"of one part more", "payload 1 compressed length", put(53, 1)},
		{"missing", "tensor 0 compressed length", func(p []byte) []byte { return p[:compressedLengths+15] }},
		{"of an empty part", "payload 0 compressed length", func(p []byte) []byte { return put(24, 0)(put(25, 0)(p)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var m Message
			requireFault(t, m.Decode(c.change(bytes.Clone(good)), Limits{}), "MESSAGE", c.field)
			require.Zero(t, m)
		})
	}
}

// put returns a function that sets byte at of its argument to b, in place, and returns the
// argument.
func put(at int, b byte) func([]byte) []byte {
	return func(p []byte) []byte {
		p[at] = b
		return p
	}
}

func TestMalformedMessages(t *testing.T) {
	good := messages()["inline"].Append(nil, false)[HeaderSize:]
	for _, c := range malformed {
		t.Run(c.name, func(t *testing.T) {
			var m Message
			requireFault(t, m.Decode(c.change(bytes.Clone(good)), Limits{}), "MESSAGE", c.field)
			require.Zero(t, m)
		})
	}
}

// TestLengthsDoNotWrapAround checks that Decode rejects a message whose lengths are so large that
// their sum would overflow to a small number.
func TestLengthsDoNotWrapAround(t *testing.T) {
	m := Message{Payloads: []Payload{{Length: 1, Inline: true, Data: []byte("x")}, {Length: 1, Inline: true, Data: []byte("y")}}}
	body := m.Append(nil, false)[HeaderSize:]
	for i := range 2 {
		binary.LittleEndian.PutUint64(body[messageFixed+i*payloadEntry:], 1<<62+uint64(i))
	}
	requireFault(t, m.Decode(body, Limits{}), "MESSAGE", "payload 0 length")

	body = m.Append(nil, false)[HeaderSize:]
	for i := range 2 {
		binary.LittleEndian.PutUint32(body[messageFixed+i*payloadEntry+8:], math.MaxUint32)
	}
	requireFault(t, m.Decode(body, Limits{}), "MESSAGE", "length")
}

func TestMalformedHeaders(t *testing.T) {
	for _, c := range []struct {
		name, field string
		header      []byte
		limit       bool
	}{
		{"largest", "", []byte{0, 0, 0x60, 0, 1, 0, 0, 0}, false},
		{"checksum", "", []byte{0, 0, 0x60, 0, 1, 1, 0, 0}, false},
		{"too long", "length", []byte{1, 0, 0x60, 0, 1, 0, 0, 0}, true},
		{"far too long", "length", []byte{255, 255, 255, 255, 1, 0, 0, 0}, true},
		{"kind 0", "kind", []byte{0, 0, 0, 0, 0, 0, 0, 0}, false},
		{"another kind", "kind", []byte{0, 0, 0, 0, 2, 0, 0, 0}, false},
		{"unknown flag", "flags", []byte{0, 0, 0, 0, 1, 2, 0, 0}, false},
		{"reserved", "reserved", []byte{0, 0, 0, 0, 1, 0, 1, 0}, false},
		{"reserved", "reserved", []byte{0, 0, 0, 0, 1, 0, 0, 1}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, err := DecodeMessageHeader(c.header, Limits{})
			if c.field == "" {
				require.NoError(t, err)
				require.Equal(t, c.header, h.Append(nil))
				return
			}
			requireFault(t, err, "MESSAGE", c.field)
			if c.limit {
				require.ErrorIs(t, err, ErrLimit)
			} else {
				require.NotErrorIs(t, err, ErrLimit)
			}
		})
	}
}

func TestChecksum(t *testing.T) {
	frame := messages()["inline"].Append(nil, true)
	for at := range frame {
		if at == 5 || at < 4 {
			continue // changes the length, or the flag for the checksum
		}
		bent := bytes.Clone(frame)
		bent[at] ^= 0x10
		h, err := decodeHeader(messageFrame, bent)
		if err == nil {
			_, err = h.Body(bent[HeaderSize:])
			require.ErrorIs(t, err, ErrChecksum, "byte %d", at)
		}
	}
}

// TestLimits checks that for each limit, Check and Decode accept a message that just meets the
// limit, and report ErrLimit for one that exceeds it by one.
func TestLimits(t *testing.T) {
	for _, c := range []struct {
		field  string
		m      *Message
		within Limits
		beyond Limits
	}{
		{"payloads", messages()["large"], Limits{Payloads: 2}, Limits{Payloads: 1}},
		{"tensors", messages()["devices"], Limits{Tensors: 3}, Limits{Tensors: 2}},
		{"inline bytes", messages()["inline"], Limits{Inline: 16}, Limits{Inline: 15}},
		{"descriptor", messages()["inline"], Limits{Descriptor: 84}, Limits{Descriptor: 83}},
		{"tensor 0 device kind", messages()["devices"], Limits{Kind: 4}, Limits{Kind: 3}},
	} {
		t.Run(c.field, func(t *testing.T) {
			body := c.m.Append(nil, false)[HeaderSize:]
			var m Message
			require.NoError(t, c.m.Check(c.within))
			require.NoError(t, m.Decode(body, c.within))
			for _, err := range []error{c.m.Check(c.beyond), m.Decode(body, c.beyond)} {
				require.ErrorIs(t, err, ErrLimit)
				requireFault(t, err, "MESSAGE", c.field)
			}
		})
	}
}

func TestDefaults(t *testing.T) {
	require.Equal(t, Limits{4 << 20, MaxInline, MaxParts, MaxParts, 64}, Limits{}.WithDefaults())
	maximum := Limits{math.MaxInt, math.MaxInt, math.MaxInt, math.MaxInt, math.MaxInt}
	require.Equal(t, Limits{math.MaxInt, math.MaxInt, MaxParts, MaxParts, 255}, maximum.WithDefaults())
	few := Limits{1, 2, 3, 4, 5}
	require.Equal(t, few, few.WithDefaults())
}

// TestCheckDevices checks that Check rejects a message with a device that cannot be encoded:
// without a kind, with a kind that is too long, or with an index out of range.
func TestCheckDevices(t *testing.T) {
	for field, c := range map[string]Tensor{
		"tensor 1 source kind":  {},
		"tensor 1 target kind":  {Source: device.CPU(), Target: device.Device{Index: 1}},
		"tensor 1 device kind":  {Source: device.CPU(), Target: device.Device{Kind: strings.Repeat("k", 256)}},
		"tensor 1 device index": {Source: cuda(-1)},
	} {
		m := Message{Tensors: []Tensor{{Source: device.CPU()}, c}}
		requireFault(t, m.Check(Limits{Kind: 1000}), "MESSAGE", field)
	}
	largest := math.MaxInt32
	m := Message{Tensors: []Tensor{{Source: device.CPU(), Target: cuda(largest + 1)}}}
	requireFault(t, m.Check(Limits{}), "MESSAGE", "tensor 0 device index")
}

// TestDescriptorSize checks that for a message whose parts are all inline and uncompressed,
// DescriptorSize returns the size of the descriptor if the prefix contains the descriptor, and 0
// otherwise. Decoding the descriptor and the inline bytes separately gives the same message as
// decoding the whole body.
func TestDescriptorSize(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bytes := rapid.SliceOfN(rapid.Byte(), 0, 40)
		m := &Message{Metadata: bytes.Draw(t, "metadata")}
		for range rapid.IntRange(0, 5).Draw(t, "payloads") {
			p := bytes.Draw(t, "payload")
			m.Payloads = append(m.Payloads, Payload{Length: uint64(len(p)), Inline: true, Data: p, Metadata: bytes.Draw(t, "of payload")})
		}
		for range rapid.IntRange(0, 5).Draw(t, "tensors") {
			p := bytes.Draw(t, "tensor")
			m.Tensors = append(m.Tensors, Tensor{Length: uint64(len(p)), Inline: true, Data: p, Source: device.CPU(), Metadata: bytes.Draw(t, "of tensor")})
		}
		body := m.Append(nil, false)[HeaderSize:]
		descriptor, inline := m.sizes()
		shown := rapid.IntRange(0, len(body)).Draw(t, "shown")
		n := DescriptorSize(body[:shown])
		if shown < int(descriptor) {
			require.Zero(t, n)
			return
		}
		require.EqualValues(t, descriptor, n)

		var whole, head Message
		require.NoError(t, whole.Decode(body, Limits{}))
		require.NoError(t, head.DecodeDescriptor(body[:n], uint32(len(body)), Limits{}))
		if inline > 0 {
			head.SetData(body[n:])
		}
		require.Equal(t, whole.Payloads, head.Payloads)
		require.Equal(t, whole.Tensors, head.Tensors)
		require.Error(t, new(Message).DecodeDescriptor(body[:n], uint32(len(body))+1, Limits{}), "a body of another length")
	})
}

// TestDescriptorSizeOfUncompressedInlineMessages checks that DescriptorSize returns a size for a
// message whose parts are inline and uncompressed, and 0 if a part is not inline or is compressed.
func TestDescriptorSizeOfUncompressedInlineMessages(t *testing.T) {
	plain := Message{Payloads: []Payload{{Length: 3, Inline: true, Data: []byte("abc")}}}
	require.NotZero(t, DescriptorSize(plain.Append(nil, false)[HeaderSize:]))
	large := Message{Payloads: []Payload{{Length: 3}}}
	require.Zero(t, DescriptorSize(large.Append(nil, false)[HeaderSize:]))
	packed := Message{Payloads: []Payload{{Length: 30, Inline: true, Codec: 1, CompressedLength: 3, Data: []byte("abc")}}}
	require.Zero(t, DescriptorSize(packed.Append(nil, false)[HeaderSize:]))
}

// TestMaxJoined checks that a message with more than MaxJoined tensors joined to one is rejected.
func TestMaxJoined(t *testing.T) {
	one := Tensor{Length: 1 << 20, Source: device.CPU(), Target: device.CPU()}
	joined := one
	joined.Joined = true
	m := &Message{Tensors: append([]Tensor{one}, slices.Repeat([]Tensor{joined}, MaxJoined)...)}
	m.Tensors = append(m.Tensors, m.Tensors...)
	require.Equal(t, MaxJoined, JoinedTo(m.Tensors, 0))
	require.Equal(t, MaxJoined-1, JoinedTo(m.Tensors, 1))
	_, err := decoded(t, m.Append(nil, false), Limits{})
	require.NoError(t, err)
	m.Tensors = append(m.Tensors, joined)
	_, err = decoded(t, m.Append(nil, false), Limits{})
	require.ErrorIs(t, err, ErrLimit)
}
