package nop

import (
	"encoding/hex"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func unhex(t testing.TB, s string) []byte {
	p, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	require.NoError(t, err)
	return p
}

func TestIntegersRoundTrip(t *testing.T) {
	values := []int64{0, 1, 63, 64, 127, 128, 129, 255, 256, 32767, 32768, 65535, 65536,
		math.MaxInt32, math.MaxInt32 + 1, math.MaxUint32, math.MaxUint32 + 1, math.MaxInt64}
	for _, v := range values {
		for _, signed := range []int64{v, -v, -v - 1} {
			d := NewDecoder(AppendInt(nil, signed))
			require.Equal(t, signed, d.Int64())
			require.NoError(t, d.Finish())
		}
		for _, unsigned := range []uint64{uint64(v), ^uint64(v)} {
			d := NewDecoder(AppendUint(nil, unsigned))
			require.Equal(t, unsigned, d.Uint64())
			require.NoError(t, d.Finish())
		}
	}
}

func TestWiderFormsAreRead(t *testing.T) {
	for _, text := range []string{"05", "80 05", "81 05 00", "82 05 00 00 00", "83 05 00 00 00 00 00 00 00"} {
		d := NewDecoder(unhex(t, text))
		require.Equal(t, uint64(5), d.Uint64(), text)
		require.NoError(t, d.Finish(), text)
	}
	for _, text := range []string{"fb", "84 fb", "85 fb ff", "86 fb ff ff ff", "87 fb ff ff ff ff ff ff ff"} {
		d := NewDecoder(unhex(t, text))
		require.Equal(t, int64(-5), d.Int64(), text)
		require.NoError(t, d.Finish(), text)
	}
	d := NewDecoder(unhex(t, "b9 81 02 00"))
	d.Struct(2)
	require.NoError(t, d.Finish())
}

func TestBoolAndVariant(t *testing.T) {
	p := AppendBool(AppendBool(nil, true), false)
	p = AppendVariantHeader(p, 1)
	p = AppendEmpty(AppendVariantHeader(p, -1))
	require.Equal(t, unhex(t, "01 00 b8 01 b8 ff be"), p)
	d := NewDecoder(p)
	require.True(t, d.Bool())
	require.False(t, d.Bool())
	require.Equal(t, int32(1), d.Variant())
	require.Equal(t, int32(-1), d.Variant())
	require.True(t, d.Empty())
	require.False(t, d.Empty(), "nothing left")
	require.NoError(t, d.Finish())
}

func TestHeaders(t *testing.T) {
	p := AppendPairHeader(AppendMapHeader(AppendArrayHeader(nil, 300), 3))
	require.Equal(t, unhex(t, "ba 81 2c 01 bb 03 ba 02"), p)
	d := NewDecoder(append(p, make([]byte, 600)...))
	require.Equal(t, 300, d.Array(2))
	require.Equal(t, 3, d.Map(1))
	d.Pair()
	require.NoError(t, d.Err())
	require.Equal(t, len(p), d.Offset())
}

// read names a method for the table below.
type read = func(d *Decoder)

var (
	u64     read = func(d *Decoder) { d.Uint64() }
	u32     read = func(d *Decoder) { d.Uint32() }
	i64     read = func(d *Decoder) { d.Int64() }
	i32     read = func(d *Decoder) { d.Int32() }
	truth   read = func(d *Decoder) { d.Bool() }
	str     read = func(d *Decoder) { d.Bytes() }
	ints    read = func(d *Decoder) { d.Uint64s(nil) }
	array   read = func(d *Decoder) { d.Array(1) }
	array5  read = func(d *Decoder) { d.Array(5) }
	mapping read = func(d *Decoder) { d.Map(2) }
	struct3 read = func(d *Decoder) { d.Struct(3) }
	pair    read = func(d *Decoder) { d.Pair() }
	variant read = func(d *Decoder) { d.Variant() }
)

func TestMalformed(t *testing.T) {
	cases := []struct {
		name   string
		bytes  string
		read   read
		offset int
		what   string
	}{
		{"nothing", "", u64, 0, "nothing left"},
		{"signed for unsigned", "84 05", u64, 0, "want an unsigned integer (00..7f or 80..83), got 84"},
		{"negative for unsigned", "ff", u64, 0, "got ff"},
		{"unsigned for signed", "80 ff", i64, 0, "want a signed integer (00..7f, c0..ff or 84..87), got 80"},
		{"u64 for u32", "83 05 00 00 00 00 00 00 00", u32, 0, "80..82), got 83"},
		{"i64 for i32", "87 05 00 00 00 00 00 00 00", i32, 0, "84..86), got 87"},
		{"float", "88 00 00 00 00", i64, 0, "got 88"},
		{"string for integer", "bd 00", u64, 0, "got bd"},
		{"cut u16", "81 05", u64, 1, "want 2 bytes, 1 left"},
		{"cut i64", "87 05 00 00", i64, 1, "want 8 bytes, 3 left"},
		{"truth", "02", truth, 0, "want a truth value (00 or 01), got 02"},
		{"no truth", "", truth, 0, "nothing left"},
		{"integer for string", "05", str, 0, "want a string (bd), got 05"},
		{"string without count", "bd", str, 1, "nothing left"},
		{"string with signed count", "bd ff", str, 1, "got ff"},
		{"string too long", "bd 03 61 62", str, 1, "count of 3 parts, the bytes left hold at most 2"},
		{"string of 2^63", "bd 83 00 00 00 00 00 00 00 80", str, 1, "hold at most 0"},
		{"integers of odd size", "bc 04 01 02 03 04", ints, 0, "4 bytes are no array of 64-bit integers"},
		{"integers cut", "bc 08 01 02 03 04", ints, 1, "count of 8 parts"},
		{"array for integers", "ba 01 05", ints, 0, "want an array of integers (bc), got ba"},
		{"array of 2^64-1", "ba 83 ff ff ff ff ff ff ff ff 00", array, 1, "hold at most 1"},
		{"array of 3 with room for 2", "ba 03 00 00 00 00 00 00 00 00 00 00 00 00", array5, 1, "hold at most 2"},
		{"integers for array", "bc 00", array, 0, "want an array (ba), got bc"},
		{"map of 2 with room for 1", "bb 02 00 00 00", mapping, 1, "hold at most 1"},
		{"array for map", "ba 00", mapping, 0, "want a map (bb), got ba"},
		{"too few members", "b9 02 00 00", struct3, 0, "want a structure of 3, got 2"},
		{"too many members", "b9 04 00 00", struct3, 0, "want a structure of 3, got 4"},
		{"array for structure", "ba 03", struct3, 0, "want a structure (b9), got ba"},
		{"structure without count", "b9", struct3, 1, "nothing left"},
		{"triple for pair", "ba 03 00 00 00", pair, 0, "want a pair of 2, got 3"},
		{"structure for variant", "b9 00", variant, 0, "want a variant (b8), got b9"},
		{"variant without index", "b8", variant, 1, "nothing left"},
		{"unsigned index", "b8 80 01", variant, 1, "got 80"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := NewDecoder(unhex(t, c.bytes))
			c.read(&d)
			typed, ok := errors.AsType[*Error](d.Err())
			require.True(t, ok, "%v", d.Err())
			require.Equal(t, c.offset, typed.Offset)
			require.Contains(t, typed.Error(), c.what)
		})
	}
}

func TestFirstFailureIsKept(t *testing.T) {
	d := NewDecoder(unhex(t, "05 bd 01 61 be bc 08 01 00 00 00 00 00 00 00"))
	d.Bytes()
	first := d.Err()
	require.Error(t, first)
	require.Zero(t, d.Uint64())
	require.Zero(t, d.Int64())
	require.False(t, d.Bool())
	require.Nil(t, d.Bytes())
	require.Nil(t, d.Uint64s(nil))
	require.Zero(t, d.Array(1))
	require.Zero(t, d.Map(2))
	require.Zero(t, d.Variant())
	require.False(t, d.Empty())
	d.Struct(1)
	d.Pair()
	d.Fail(errors.New("later"))
	d.Failf("later still")
	require.Same(t, first, d.Err())
	require.Same(t, first, d.Finish())
	require.Equal(t, 1, d.Offset())
}

func TestFailAndFinish(t *testing.T) {
	refused := errors.New("refused")
	d := NewDecoder([]byte{1, 2})
	d.Fail(refused)
	require.Same(t, refused, d.Finish())

	d = NewDecoder([]byte{1, 2, 3})
	d.Uint64()
	require.Equal(t, &Error{Offset: 1, What: "2 bytes too many"}, d.Finish())
}

func TestBytesAliasTheInputAndCannotGrowIntoIt(t *testing.T) {
	p := unhex(t, "bd 01 61 05")
	d := NewDecoder(p)
	got := d.Bytes()
	require.Same(t, &p[2], &got[0])
	require.Equal(t, 1, cap(got))
}

func TestUint64sAppends(t *testing.T) {
	d := NewDecoder(AppendUint64s(nil, []uint64{7, 1 << 63}))
	require.Equal(t, []uint64{1, 7, 1 << 63}, d.Uint64s([]uint64{1}))
	require.NoError(t, d.Finish())
}

func TestNothingIsAllocated(t *testing.T) {
	p := make([]byte, 0, 64)
	words := make([]uint64, 0, 4)
	var err error
	allocs := testing.AllocsPerRun(100, func() {
		p = AppendStructHeader(p[:0], 3)
		p = AppendString(AppendInt(AppendUint(p, 1<<40), -9), "cpu")
		p = AppendUint64s(AppendMapHeader(AppendArrayHeader(p, 0), 0), []uint64{5, 6})
		d := NewDecoder(p)
		d.Struct(3)
		d.Uint64()
		d.Int64()
		d.Bytes()
		d.Array(1)
		d.Map(2)
		words = d.Uint64s(words[:0])
		err = d.Finish()
	})
	require.NoError(t, err)
	require.Equal(t, []uint64{5, 6}, words)
	require.Zero(t, allocs)
}
