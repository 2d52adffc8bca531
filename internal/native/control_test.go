package native

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// controls has a frame of each kind, and frames with unusual values.
var controls = map[string]Control{
	"want read":     {Kind: WantRead, Number: 7},
	"have read":     {Kind: HaveRead, Number: math.MaxUint64},
	"goodbye":       {Kind: Goodbye, Text: "done for today"},
	"plain goodbye": {Kind: Goodbye},
	"targets":       {Kind: Targets, Number: 300, Devices: []device.Device{device.CPU(), cuda(1), {Kind: "npu", Index: math.MaxInt32}}},
	"abort":         {Kind: Abort, Number: 8, Text: "the caller gave up"},
	"plain abort":   {Kind: Abort, Number: 9},
	"cancel":        {Kind: Cancel, Number: 10},
	"ready":         {Kind: Ready, Number: TransferID(11, 2), Lane: 513},
	"bulk":          {Kind: Bulk},
	"credit":        {Kind: Credit, Number: 1 << 20},
	"want credit":   {Kind: WantCredit},
}

// decodedControl decodes frame, a whole frame of the control stream, and returns the error of the
// header, the checksum or the body. It requires that frame has the length that the header gives.
func decodedControl(t testing.TB, frame []byte, limits Limits) (Control, error) {
	h, err := DecodeControlHeader(frame, limits)
	if err != nil {
		return Control{}, err
	}
	require.Len(t, frame, HeaderSize+h.Remaining())
	body, err := h.Body(frame[HeaderSize:])
	if err != nil {
		return Control{}, err
	}
	return DecodeControl(ControlKind(h.Kind), body, limits)
}

func TestControls(t *testing.T) {
	for name, c := range controls {
		for _, crc := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				frame := c.Append([]byte("before"), crc)[len("before"):]
				require.Equal(t, crc, frame[5] == flagCRC)
				got, err := decodedControl(t, frame, Limits{})
				require.NoError(t, err)
				require.Equal(t, c, got)
			})
		}
	}
}

func TestControlNames(t *testing.T) {
	require.Equal(t, "WANT_READ", WantRead.String())
	require.Equal(t, "BULK", Bulk.String())
	require.Equal(t, "kind 0x0b", ControlKind(11).String())
	require.Len(t, controlNames, int(WantCredit))
}

func TestTextIsTruncatedToValidUTF8(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"longest", strings.Repeat("x", MaxText), strings.Repeat("x", MaxText)},
		{"too long", strings.Repeat("x", MaxText+1), strings.Repeat("x", MaxText)},
		{"too long, cut between characters", "x" + strings.Repeat("ä", MaxText), "x" + strings.Repeat("ä", MaxText/2-1)},
		{"no UTF-8", "a\xff\xfeb", "a?b"},
		{"no UTF-8 at all", strings.Repeat("\x80", 2000), "?"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, kind := range []ControlKind{Goodbye, Abort} {
				got, err := decodedControl(t, Control{Kind: kind, Text: c.text}.Append(nil, false), Limits{})
				require.NoError(t, err)
				require.Equal(t, c.want, got.Text)
			}
		})
	}
}

// TestUnknownControlsAreSkipped checks that a control frame of an unknown kind decodes to a Control
// with only that kind, so that later versions can send further kinds. If its body is longer than
// maxUnknown, the header is rejected.
func TestUnknownControlsAreSkipped(t *testing.T) {
	for _, size := range []int{0, 1, maxUnknown} {
		frame := append(Header{Length: uint32(size), Kind: 0x42}.Append(nil), make([]byte, size)...)
		got, err := decodedControl(t, frame, Limits{})
		require.NoError(t, err)
		require.Equal(t, Control{Kind: 0x42}, got)
	}
	_, err := DecodeControlHeader(Header{Length: maxUnknown + 1, Kind: 0x42}.Append(nil), Limits{})
	requireFault(t, err, "kind 0x42", "length")
	require.NotErrorIs(t, err, ErrLimit)
}

func TestControlSizes(t *testing.T) {
	largest := targetsFixed + MaxParts*uint32(targetFixed+64)
	for _, c := range []struct {
		kind ControlKind
		good []uint32
		bad  []uint32
	}{
		{WantRead, []uint32{8}, []uint32{0, 7, 9}},
		{HaveRead, []uint32{8}, []uint32{0, 7, 9}},
		{Goodbye, []uint32{0, 1024}, []uint32{1025}},
		{Targets, []uint32{12, largest}, []uint32{0, 11, largest + 1}},
		{Abort, []uint32{8, 1032}, []uint32{0, 7, 1033}},
		{Cancel, []uint32{8}, []uint32{0, 7, 9}},
		{Ready, []uint32{16}, []uint32{0, 15, 17}},
		{Bulk, []uint32{0}, []uint32{1, 8}},
	} {
		t.Run(c.kind.String(), func(t *testing.T) {
			for _, n := range c.good {
				h := Header{Length: n, Kind: byte(c.kind), CRC: true}
				got, err := DecodeControlHeader(h.Append(nil), Limits{})
				require.NoError(t, err)
				require.Equal(t, h.Append(nil), got.Append(nil))
			}
			for _, n := range append(c.bad, math.MaxUint32) {
				_, err := DecodeControlHeader(Header{Length: n, Kind: byte(c.kind)}.Append(nil), Limits{})
				requireFault(t, err, c.kind.String(), "length")
				if n <= 1<<20 {
					_, err = DecodeControl(c.kind, make([]byte, n), Limits{})
					requireFault(t, err, c.kind.String(), "length")
				}
			}
		})
	}
}

func TestMalformedControls(t *testing.T) {
	targets := controls["targets"].Append(nil, false)[HeaderSize:]
	ready := controls["ready"].Append(nil, false)[HeaderSize:]
	for _, c := range []struct {
		name, field string
		kind        ControlKind
		body        []byte
		change      func(p []byte) []byte
	}{
		{"goodbye that is no text", "text", Goodbye, []byte("ab"), put(0, 0xff)},
		{"abort that is no text", "text", Abort, []byte("12345678ab"), put(9, 0xc3)},
		{"reserved byte", "reserved", Ready, ready, put(10, 1)},
		{"reserved byte, far end", "reserved", Ready, ready, put(15, 1)},
		{"no devices", "count", Targets, targets, func(p []byte) []byte { return put(8, 0)(p)[:12] }},
		{"too few devices announced", "length", Targets, targets, put(8, 2)},
		{"too many devices announced", "length", Targets, targets, put(8, 4)},
		{"more devices than bytes", "count", Targets, targets, put(9, 1)},
		{"more devices than allowed", "count", Targets, targets, put(11, 0xff)},
		{"cut within a kind", "length", Targets, targets, func(p []byte) []byte { return p[:len(p)-5] }},
		{"cut within an index", "length", Targets, targets, func(p []byte) []byte { return p[:len(p)-1] }},
		{"cut before a device", "count", Targets, targets, func(p []byte) []byte { return p[:len(p)-8] }},
		{"device without kind", "device kind", Targets, targets, func(p []byte) []byte { return put(12, 0)(p) }},
		{"negative index", "device index", Targets, targets, put(19, 0x80)},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := DecodeControl(c.kind, c.change(bytes.Clone(c.body)), Limits{})
			requireFault(t, err, c.kind.String(), c.field)
		})
	}
}

func TestControlLimits(t *testing.T) {
	frame := controls["targets"].Append(nil, false)
	_, err := decodedControl(t, frame, Limits{Tensors: 3, Kind: 4})
	require.NoError(t, err)
	_, err = DecodeControl(Targets, frame[HeaderSize:], Limits{Tensors: 2, Kind: 64})
	require.ErrorIs(t, err, ErrLimit)
	_, err = DecodeControl(Targets, frame[HeaderSize:], Limits{Tensors: 300, Kind: 3})
	require.ErrorIs(t, err, ErrLimit)
	_, err = decodedControl(t, frame, Limits{Tensors: 1, Kind: 3})
	require.ErrorIs(t, err, ErrLimit)
}

func TestMalformedControlHeaders(t *testing.T) {
	for field, p := range map[string][]byte{
		"flags":    {0, 0, 0, 0, 8, 0x80, 0, 0},
		"reserved": {0, 0, 0, 0, 8, 0, 0, 1},
	} {
		_, err := DecodeControlHeader(p, Limits{})
		requireFault(t, err, "control frame", field)
	}
}
