package codec

import (
	"math"
	"net/netip"
	"reflect"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

type (
	celsius float64
	names   []string
	inner   struct {
		Text string
		Skip func() `tensorpipe:"-"`
		_    [3]byte
	}
	outer struct {
		inner `tensorpipe:"-"`
		In    inner
		Named int `tensorpipe:"n"`
		Deg   celsius
	}
	Embedded struct{ X, Y int }
	embedder struct {
		Embedded
		Z int
	}
)

// values has values of each kind, including edge cases.
var values = map[string]any{
	"bool":          true,
	"int":           -1,
	"int8":          int8(math.MinInt8),
	"int16":         int16(math.MaxInt16),
	"int32":         int32(math.MinInt32),
	"int64 least":   int64(math.MinInt64),
	"int64 most":    int64(math.MaxInt64),
	"uint":          uint(300),
	"uint8":         uint8(255),
	"uint16":        uint16(65535),
	"uint32":        uint32(math.MaxUint32),
	"uint64":        uint64(math.MaxUint64),
	"float32":       float32(1.5),
	"float64":       math.Inf(-1),
	"complex64":     complex64(complex(1, -2)),
	"complex128":    complex(math.MaxFloat64, math.SmallestNonzeroFloat64),
	"string":        "zwölf\x00\xff",
	"empty string":  "",
	"bytes":         []byte{0, 1, 255},
	"no bytes":      []byte{},
	"nil bytes":     []byte(nil),
	"named":         celsius(-40),
	"duration":      -3 * time.Hour,
	"slice":         []int64{1, -1, 1 << 40},
	"empty slice":   []int{},
	"nil slice":     []int(nil),
	"strings":       names{"a", "", "c"},
	"float32s":      []float32{1, -0.5, math.MaxFloat32},
	"float64s":      []float64{1, -0.5},
	"complex64s":    []complex64{1i, 2},
	"complex128s":   []complex128{1i, 2},
	"slices":        [][]string{nil, {}, {"x"}},
	"nothings":      make([]struct{}, 1000),
	"array":         [3]string{"a", "b", "c"},
	"bytes array":   [16]byte{1, 15: 255},
	"floats array":  [2]float64{1, 2},
	"empty array":   [0]int{},
	"map":           map[string]int{"a": 1, "b": -2},
	"empty map":     map[int]string{},
	"nil map":       map[string]int(nil),
	"map of maps":   map[int]map[string][]byte{1: {"x": nil}, 2: nil},
	"struct key":    map[Embedded]bool{{1, 2}: true},
	"set":           map[string]struct{}{"a": {}, "b": {}},
	"no key":        map[struct{}]int{{}: 7},
	"struct":        outer{In: inner{Text: "x"}, Named: 3, Deg: 21.5},
	"embedded":      embedder{Embedded{1, 2}, 3},
	"empty struct":  struct{}{},
	"zero time":     time.Time{},
	"utc":           time.Date(2026, 11, 22, 9, 8, 7, 123456789, time.UTC),
	"long ago":      time.Date(-5000, 1, 1, 0, 0, 0, 0, time.UTC),
	"binary method": netip.MustParseAddr("fe80::1%eth0"),
}

func TestValues(t *testing.T) {
	r := NewRegistry()
	for name, v := range values {
		t.Run(name, func(t *testing.T) {
			from := reflect.New(reflect.TypeOf(v))
			from.Elem().Set(reflect.ValueOf(v))
			data, tensors := encode(t, r, from.Interface())
			require.Empty(t, tensors)

			to := reflect.New(reflect.TypeOf(v))
			require.NoError(t, decode(t, r, to.Interface(), data, nil))
			require.Equal(t, v, to.Elem().Interface())

			for n := range data {
				require.Error(t, decode(t, r, reflect.New(reflect.TypeOf(v)).Interface(), data[:n], nil), "the first %d bytes", n)
			}
			require.ErrorIs(t, decode(t, r, to.Interface(), append(data, 0), nil), ErrCorrupt)
		})
	}
}

func TestNaN(t *testing.T) {
	r := NewRegistry()
	quiet := math.Float64frombits(0x7ff8_0000_0000_1234)
	require.Equal(t, math.Float64bits(quiet), math.Float64bits(roundTrip(t, r, quiet)))
	require.Len(t, roundTrip(t, r, map[float64]int{math.NaN(): 1, quiet: 2}), 2)
}

func TestZones(t *testing.T) {
	r := NewRegistry()
	for _, offset := range []int{0, 3600, -12 * 3600, 12345} {
		was := time.Date(2026, 11, 22, 9, 8, 7, 1, time.FixedZone("somewhere", offset))
		got := roundTrip(t, r, was)
		require.True(t, was.Equal(got))
		_, there := got.Zone()
		require.Equal(t, offset, there)
	}
	now := time.Now()
	require.True(t, now.Equal(roundTrip(t, r, now)))
	require.Equal(t, time.Local, roundTrip(t, r, now).Location())
}

// TestDecodeOverwrites checks that Decode overwrites all fields of a struct, but not the slices,
// maps and variables to which the old fields refer.
func TestDecodeOverwrites(t *testing.T) {
	type args struct {
		S    []int
		M    map[string]int
		P    *int
		I    any
		Err  error
		Name string
	}
	r := NewRegistry()
	seven := 7
	old := args{S: []int{1, 2, 3}, M: map[string]int{"a": 1}, P: &seven, I: 5, Err: ErrType, Name: "x"}
	got := old
	data, _ := encode(t, r, &args{S: []int{9}})
	require.NoError(t, decode(t, r, &got, data, nil))
	require.Equal(t, args{S: []int{9}}, got)
	require.Equal(t, []int{1, 2, 3}, old.S)
	require.Len(t, old.M, 1)
	require.Equal(t, 7, seven)
}

type bad struct {
	Fine int
	List []map[string]struct {
		Deep *struct{ C chan int }
	}
}

func TestUnsupported(t *testing.T) {
	r := NewRegistry()
	type hidden struct {
		A      int
		secret int
	}
	for _, c := range []struct {
		ptr        any
		path, text string
	}{
		{new(bad), "codec.bad.List[][].Deep.C", "chan int"},
		{&hidden{secret: 1}, "codec.hidden.secret", "not exported"},
		{new(func()), "func()", "func()"},
		{new(map[string]func()), "map[string]func()[]", "func()"},
		{new(map[chan int]int), "map[chan int]int[key]", "chan int"},
		{new([2]uintptr), "[2]uintptr[]", "uintptr"},
		{new(*unsafe.Pointer), "*unsafe.Pointer", "unsafe.Pointer"},
		{new(struct {
			A int
			B int `tensorpipe:"A"`
		}), "", "two fields"},
		{7, "", "want a pointer"},
		{nil, "", "want a pointer"},
		{(*int)(nil), "", "want a pointer"},
	} {
		err := encodeError(t, r, c.ptr)
		require.ErrorIs(t, err, ErrUnsupported)
		require.ErrorContains(t, err, c.text)
		var e *Error
		require.ErrorAs(t, err, &e)
		require.Contains(t, e.Path(), c.path)

		data, _ := encode(t, r, &struct{}{})
		require.ErrorIs(t, decode(t, r, c.ptr, data, nil), ErrUnsupported)
	}
}

func ptr[T any](v T) *T { return &v }
