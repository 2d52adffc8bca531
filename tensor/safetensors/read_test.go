package safetensors

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// build returns the contents of a file: the length of header, header, and data.
func build(header string, data ...byte) []byte {
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(out, header...), data...)
}

// save writes contents to a new file in a temporary directory of the test and returns its path.
func save(t testing.TB, contents []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.safetensors")
	require.NoError(t, os.WriteFile(path, contents, 0o600))
	return path
}

// elements returns a copy of the bytes of x, which must be contiguous and on the host.
func elements(t testing.TB, x *tensor.Tensor) []byte {
	t.Helper()
	buf, err := x.Buffer()
	require.NoError(t, err)
	p, ok := buf.Contiguous()
	require.True(t, ok)
	return append([]byte{}, p...)
}

// readers are the functions that read a whole file.
var readers = map[string]func(t testing.TB, file []byte, o Options) (map[string]*tensor.Tensor, map[string]string, error){
	"Decode": func(_ testing.TB, file []byte, o Options) (map[string]*tensor.Tensor, map[string]string, error) {
		return Decode(bytes.NewReader(file), o)
	},
	"Decode byte by byte": func(_ testing.TB, file []byte, o Options) (map[string]*tensor.Tensor, map[string]string, error) {
		return Decode(iotest.OneByteReader(bytes.NewReader(file)), o)
	},
	"ReadFile": func(t testing.TB, file []byte, o Options) (map[string]*tensor.Tensor, map[string]string, error) {
		return ReadFile(save(t, file), o)
	},
}

// TestGolden compares the dtype, the shape and a checksum of every tensor of three files, written
// by users of PyTorch, with testdata/sums.txt, which a few lines of Python have made from the same
// files.
func TestGolden(t *testing.T) {
	list, err := os.ReadFile("testdata/sums.txt")
	require.NoError(t, err)
	files := map[string]map[string]*tensor.Tensor{}
	lines := strings.Split(strings.TrimSpace(string(list)), "\n")
	require.Len(t, lines, 496)
	for _, line := range lines {
		f := strings.Fields(line)
		path, name, dtype, shape, sum := f[0], f[1], f[2], f[3], f[4]
		if files[path] == nil {
			files[path], _, err = ReadFile("testdata/"+path, Options{})
			require.NoError(t, err)
		}
		x := files[path][name]
		require.NotNil(t, x, name)
		delete(files[path], name)
		require.Equal(t, strings.ToLower(dtype)+shape, x.String(), name)
		require.Equal(t, sum, fmt.Sprintf("%x", sha256.Sum256(elements(t, x)))[:16], name)
	}
	require.Len(t, files, 3)
	for path, rest := range files {
		require.Empty(t, rest, path)
	}
}

func TestGoldenWeights(t *testing.T) {
	tensors, metadata, err := ReadFile("testdata/digits_split_mlp_init.safetensors", Options{})
	require.NoError(t, err)
	require.Nil(t, metadata)
	require.Len(t, tensors, 4)
	for _, c := range []struct {
		name             string
		shape            []int
		first, last, sum float64
	}{
		{"stage0.weight", []int{128, 64}, 0.012203375808894634, 0.016516057774424553, -9.659256065814304},
		{"stage0.bias", []int{128}, -0.000662345380987972, -0.031978972256183624, -0.8151930476742564},
		{"stage1.weight", []int{10, 128}, 0.011038222350180149, -0.06312879174947739, -0.8775639452505857},
		{"stage1.bias", []int{10}, 0.020671376958489418, -0.05290570482611656, -0.1611613566055894},
	} {
		x := tensors[c.name]
		require.Equal(t, tensor.F32, x.DType())
		require.Equal(t, c.shape, x.Shape())
		values, err := tensor.Data[float32](x)
		require.NoError(t, err)
		require.Equal(t, c.first, float64(values[0]))
		require.Equal(t, c.last, float64(values[len(values)-1]))
		sum := 0.0
		for _, v := range values {
			sum += float64(v)
		}
		require.InDelta(t, c.sum, sum, 1e-12)
	}
}

// pattern returns the bytes that the program in internal/crosscheck writes for a tensor with the
// given description.
func pattern(info Info) []byte {
	p := make([]byte, info.ByteSize())
	for i := range p {
		p[i] = byte(31*i + len(info.Name))
		if info.DType == "BOOL" {
			p[i] &= 1
		}
	}
	return p
}

// TestIndependentFiles checks that the files in testdata/independent, which another implementation
// has written, are read with the right order, dtypes, shapes, bytes and metadata.
func TestIndependentFiles(t *testing.T) {
	for _, c := range []struct {
		file     string
		tensors  []string // in the order of the file
		metadata map[string]string
	}{
		{"dtypes", []string{
			"bool[2,3] bool", "u8[3,2] u8", "i8[5] i8", "i16[2,2] i16", "i32[1,3] i32", "i64[2] i64",
			"f16[4,1] f16", "bf16[7] bf16", "f32[3,3] f32", "f64[2,1,2] f64",
		}, nil},
		{"shapes", []string{
			"f32[] scalar", "f64[0] empty", "i16[3,0,2] hollow", "u8[1,1,2,1,1,3,1] deep", "u8[1] ", "i8[2] \"\\\n<&>\u2028é😀",
		}, nil},
		{"metadata", []string{"f32[2] x"},
			map[string]string{"format": "pt", "": "empty key", "text": "\"quotes\", \\, <tags> & \u2028 😀\n"}},
	} {
		t.Run(c.file, func(t *testing.T) {
			f, err := Open("testdata/independent/"+c.file+".safetensors", Options{})
			require.NoError(t, err)
			defer f.Close()
			require.Equal(t, c.metadata, f.Metadata())
			require.Len(t, f.Infos(), len(c.tensors))
			for i, info := range f.Infos() {
				x, err := f.Tensor(info.Name)
				require.NoError(t, err)
				require.Equal(t, c.tensors[i], x.String()+" "+info.Name)
				require.Equal(t, pattern(info), elements(t, x))
			}
		})
	}
}

func TestUnsupportedDTypes(t *testing.T) {
	const path = "testdata/independent/unsupported.safetensors"
	f, err := Open(path, Options{})
	require.NoError(t, err)
	defer f.Close()
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	r, err := NewReader(bytes.NewReader(file), Options{})
	require.NoError(t, err)
	require.Equal(t, f.Infos(), r.Infos())
	unsupported := map[string]string{"u16": "U16", "u32": "U32", "u64": "U64", "f8_e5m2": "F8_E5M2", "f8_e4m3": "F8_E4M3"}
	require.Len(t, f.Infos(), 7)
	for _, want := range f.Infos() {
		info, streamed, streamErr := r.Next()
		require.Equal(t, want, info)
		mapped, mappedErr := f.Tensor(want.Name)
		for _, err := range []error{streamErr, mappedErr} {
			if dtype := unsupported[want.Name]; dtype != "" {
				require.Equal(t, &DTypeError{Tensor: want.Name, DType: dtype, Reason: "is not supported; convert the tensor to another one"}, err)
			} else {
				require.NoError(t, err)
			}
		}
		if streamErr == nil {
			require.Equal(t, pattern(info), elements(t, streamed))
			require.Equal(t, pattern(info), elements(t, mapped))
		}
	}
	_, _, err = r.Next()
	require.Equal(t, io.EOF, err)
	_, _, err = Decode(bytes.NewReader(file), Options{})
	require.ErrorAs(t, err, new(*DTypeError))
	_, _, err = ReadFile(path, Options{})
	require.ErrorAs(t, err, new(*DTypeError))
}

// TestSmallDTypes checks that the size of tensors with elements smaller than a byte is counted in
// bits: they are skipped with a *DTypeError, and a size that is not a whole number of bytes is a
// *FormatError.
func TestSmallDTypes(t *testing.T) {
	f4 := build(`{"x":{"dtype":"F4","shape":[3,2],"data_offsets":[0,3]},"y":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[3,6]}}`, 1, 2, 3, 4, 5, 6)
	r, err := NewReader(bytes.NewReader(f4), Options{})
	require.NoError(t, err)
	require.Equal(t, 3, r.Infos()[0].ByteSize())
	for range 2 {
		_, _, err = r.Next()
		require.ErrorAs(t, err, new(*DTypeError))
	}
	_, _, err = r.Next()
	require.Equal(t, io.EOF, err)
	_, err = NewReader(bytes.NewReader(build(`{"x":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}`, 1, 2)), Options{})
	require.ErrorAs(t, err, new(*FormatError))
}

// one returns a header with one U8 tensor of n elements, named x.
func one(n int) string {
	return fmt.Sprintf(`{"x":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}`, n, n)
}

func TestAccepted(t *testing.T) {
	for _, c := range []struct {
		name, header string
		data         []byte
		names        string // in order
	}{
		{"nothing", `{}`, nil, ""},
		{"padding", `{}       `, nil, ""},
		{"metadata only", `{"__metadata__":{}}`, nil, ""},
		{"white space", " {\t\"x\" :\n{ \"dtype\":\"U8\" ,\r\"shape\": [ 1 ] , \"data_offsets\" :[0 ,1]} } "[1:], []byte{7}, "x"},
		{"keys in another order", `{"x":{"data_offsets":[0,1],"shape":[],"dtype":"I8"}}`, []byte{7}, "x"},
		{"data in another order", `{"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, []byte{1, 2}, "a b"},
		{"nothing between", `{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[0],"data_offsets":[1,1]},"c":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, []byte{1, 2}, "a b c"},
		{"escapes", `{"\u0041\/\ud83d\ude00\n":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}`, []byte{1}, "A/😀\n"},
		{"complex", `{"x":{"dtype":"C64","shape":[1],"data_offsets":[0,8]}}`, make([]byte, 8), "x"},
		{"large dimension of nothing", `{"x":{"dtype":"F32","shape":[0,9223372036854775807],"data_offsets":[0,0]}}`, nil, "x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for name, read := range readers {
				tensors, _, err := read(t, build(c.header, c.data...), Options{})
				require.NoError(t, err, name)
				r, err := NewReader(bytes.NewReader(build(c.header, c.data...)), Options{})
				require.NoError(t, err)
				var names []string
				for _, info := range r.Infos() {
					names = append(names, info.Name)
				}
				require.Equal(t, c.names, strings.Join(names, " "))
				require.Len(t, tensors, len(names))
			}
		})
	}
}

// entries returns a header of tensors named a, b, ..., whose descriptions are infos, the JSON
// between the braces.
func entries(infos ...string) string {
	var out []string
	for i, info := range infos {
		out = append(out, fmt.Sprintf("%q:{%s}", string(rune('a'+i)), info))
	}
	return "{" + strings.Join(out, ",") + "}"
}

func TestRefused(t *testing.T) {
	u8 := `"dtype":"U8","shape":[1],"data_offsets":[0,1]`
	for _, c := range []struct {
		name   string
		header string
		data   int
		want   string // part of the message
	}{
		{"empty header", ``, 0, "start with {"},
		{"array", `[]`, 0, "start with {"},
		{"space in front", ` {}`, 0, "start with {"},
		{"not terminated", `{`, 0, "want"},
		{"no value", `{"a"`, 0, "want ':'"},
		{"comma at the end", `{"a":{` + u8 + `},}`, 1, `want '"'`},
		{"no comma", `{"a":{` + u8 + `}"b":{}}`, 1, "want '}'"},
		{"text behind", `{}x`, 0, "only spaces"},
		{"tab behind", "{}\t", 0, "only spaces"},
		{"zero behind", "{}\x00", 0, "only spaces"},
		{"second object", `{}{}`, 0, "only spaces"},
		{"not UTF-8", "{\"\xff\":{" + u8 + "}}", 1, "UTF-8"},
		{"surrogate in UTF-8", "{\"\xed\xa0\x80\":{" + u8 + "}}", 1, "UTF-8"},
		{"half a surrogate pair", `{"\ud800":{` + u8 + `}}`, 1, "bad escape"},
		{"two high surrogates", `{"\ud800\ud800":{` + u8 + `}}`, 1, "surrogate"},
		{"low surrogate first", `{"\udc00\ud800":{` + u8 + `}}`, 1, "surrogate"},
		{"bad escape", `{"\x":{` + u8 + `}}`, 1, "bad escape"},
		{"bad digits", `{"\u00g0":{` + u8 + `}}`, 1, "bad escape"},
		{"signed digits", `{"\u+123":{` + u8 + `}}`, 1, "bad escape"},
		{"escape cut short", `{"\u00`, 0, "bad escape"},
		{"backslash at the end", `{"\`, 0, "bad escape"},
		{"control character", "{\"\n\":{" + u8 + "}}", 1, "control"},
		{"string without end", `{"a`, 0, "not terminated"},
		{"number as name", `{1:{` + u8 + `}}`, 1, `want '"'`},
		{"tensor is a number", `{"a":1}`, 0, "want '{'"},
		{"tensor is null", `{"a":null}`, 0, "want '{'"},

		{"same name", `{"a":{` + u8 + `},"a":{` + u8 + `}}`, 1, "twice"},
		{"same name, escaped", `{"a":{` + u8 + `},"\u0061":{` + u8 + `}}`, 1, "twice"},
		{"same name, nothing in it", `{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 0, "twice"},
		{"metadata twice", `{"__metadata__":{},"__metadata__":{}}`, 0, "twice"},
		{"key of metadata twice", `{"__metadata__":{"k":"1","k":"2"}}`, 0, "twice"},
		{"metadata is null", `{"__metadata__":null}`, 0, "want '{'"},
		{"metadata is a list", `{"__metadata__":["a"]}`, 0, "want '{'"},
		{"metadata with a number", `{"__metadata__":{"k":1}}`, 0, `want '"'`},
		{"metadata with metadata", `{"__metadata__":{"k":{}}}`, 0, `want '"'`},

		{"dtype missing", entries(`"shape":[1],"data_offsets":[0,1]`), 1, "needed"},
		{"shape missing", entries(`"dtype":"U8","data_offsets":[0,1]`), 1, "needed"},
		{"offsets missing", entries(`"dtype":"U8","shape":[1]`), 1, "needed"},
		{"one offset", entries(`"dtype":"U8","shape":[1],"data_offsets":[0]`), 1, "needed"},
		{"dtype twice", entries(`"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]`), 1, "dtype occurs twice"},
		{"shape twice", entries(`"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]`), 1, "shape occurs twice"},
		{"unknown key", entries(u8 + `,"layout":"F"`), 1, `unknown key "layout"`},
		{"dtype is a number", entries(`"dtype":8,"shape":[1],"data_offsets":[0,1]`), 1, `want '"'`},
		{"shape is a number", entries(`"dtype":"U8","shape":1,"data_offsets":[0,1]`), 1, "want '['"},

		{"negative dimension", entries(`"dtype":"U8","shape":[-1],"data_offsets":[0,1]`), 1, "integer"},
		{"negative offset", entries(`"dtype":"U8","shape":[1],"data_offsets":[-1,0]`), 1, "integer"},
		{"minus zero", entries(`"dtype":"U8","shape":[1],"data_offsets":[-0,1]`), 1, "integer"},
		{"fraction", entries(`"dtype":"U8","shape":[1.0],"data_offsets":[0,1]`), 1, "want ']'"},
		{"exponent", entries(`"dtype":"U8","shape":[1e0],"data_offsets":[0,1]`), 1, "want ']'"},
		{"leading zero", entries(`"dtype":"U8","shape":[01],"data_offsets":[0,1]`), 1, "integer"},
		{"number in a string", entries(`"dtype":"U8","shape":["1"],"data_offsets":[0,1]`), 1, "integer"},
		{"dimension is true", entries(`"dtype":"U8","shape":[true],"data_offsets":[0,1]`), 1, "integer"},
		{"more than an int", entries(`"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]`), 1, "too large"},
		{"more than 64 bits", entries(`"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,1]`), 1, "too large"},
		{"product overflows", entries(`"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]`), 0, "bad shape"},
		{"bytes overflow", entries(`"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]`), 0, "has an impossible size"},

		{"too few bytes", entries(`"dtype":"F32","shape":[1],"data_offsets":[0,3]`), 3, "takes 4 bytes, not 3"},
		{"too many bytes", entries(`"dtype":"U8","shape":[1],"data_offsets":[0,2]`), 2, "takes 1 bytes, not 2"},
		{"end before begin", entries(`"dtype":"U8","shape":[0],"data_offsets":[0,0]`, `"dtype":"U8","shape":[0],"data_offsets":[1,0]`), 0, "gap"},
		{"end before begin, behind another", entries(`"dtype":"U8","shape":[2],"data_offsets":[0,2]`, `"dtype":"U8","shape":[0],"data_offsets":[2,1]`), 2, "takes 0 bytes, not -1"},
		{"gap in front", entries(`"dtype":"U8","shape":[1],"data_offsets":[1,2]`), 2, "gap"},
		{"gap between", entries(u8, `"dtype":"U8","shape":[1],"data_offsets":[2,3]`), 3, "gap"},
		{"overlap", entries(`"dtype":"U8","shape":[2],"data_offsets":[0,2]`, `"dtype":"U8","shape":[2],"data_offsets":[1,3]`), 3, "overlap"},
		{"the same bytes", entries(u8, u8), 1, "overlap"},
		{"one within the other", entries(`"dtype":"U8","shape":[3],"data_offsets":[0,3]`, `"dtype":"U8","shape":[1],"data_offsets":[1,2]`), 3, "overlap"},
		{"nothing in the middle of another", entries(`"dtype":"U8","shape":[2],"data_offsets":[0,2]`, `"dtype":"U8","shape":[0],"data_offsets":[1,1]`), 2, "overlap"},
		{"more bytes than could be", entries(`"dtype":"U8","shape":[9223372036854775807],"data_offsets":[0,9223372036854775807]`), 1, "has an impossible size"},
		{"half a byte", entries(`"dtype":"F4","shape":[3],"data_offsets":[0,2]`), 2, "has an impossible size"},
		{"more bytes than there are", entries(`"dtype":"U8","shape":[1152921504606846976],"data_offsets":[0,1152921504606846976]`), 1, "ends within the data"},

		{"data missing", one(3), 2, "ends within the data"},
		{"no data", one(3), 0, "ends within the data"},
		{"data behind", one(3), 4, "after the last tensor"},
		{"data without a tensor", `{}`, 1, "after the last tensor"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for name, read := range readers {
				tensors, metadata, err := read(t, build(c.header, make([]byte, c.data)...), Options{})
				var typed *FormatError
				require.ErrorAs(t, err, &typed, name)
				require.ErrorContains(t, err, c.want, name)
				require.Nil(t, tensors)
				require.Nil(t, metadata)
			}
		})
	}
}

func TestUnknownDType(t *testing.T) {
	for _, dtype := range []string{"F33", "f32", "", "C128", strings.Repeat("F", 1000)} {
		for name, read := range readers {
			_, _, err := read(t, build(entries(`"dtype":"`+dtype+`","shape":[0],"data_offsets":[0,0]`)), Options{})
			require.Equal(t, &DTypeError{Tensor: "a", DType: dtype, Reason: "does not exist in the format"}, err, name)
			require.Less(t, len(err.Error()), 250)
		}
	}
}

// TestTruncated checks that every way to read a file returns a *FormatError and
// io.ErrUnexpectedEOF, wherever the file ends early.
func TestTruncated(t *testing.T) {
	file, err := os.ReadFile("testdata/independent/dtypes.safetensors")
	require.NoError(t, err)
	for n := range len(file) {
		for name, read := range readers {
			_, _, err := read(t, file[:n], Options{})
			require.ErrorIs(t, err, io.ErrUnexpectedEOF, "%s of %d bytes", name, n)
			require.ErrorAs(t, err, new(*FormatError))
		}
	}
}

func TestLimits(t *testing.T) {
	file := build(entries(`"dtype":"U8","shape":[2,1],"data_offsets":[0,2]`, `"dtype":"U8","shape":[1],"data_offsets":[2,3]`), 1, 2, 3)
	header := len(file) - 8 - 3
	for _, c := range []struct {
		name    string
		options Options
		want    *LimitError
	}{
		{"all just enough", Options{HeaderLimit: header, TensorLimit: 2, RankLimit: 2, ByteLimit: 3}, nil},
		{"negative is none", Options{HeaderLimit: -1, TensorLimit: -1, RankLimit: -1, ByteLimit: -1}, nil},
		{"header", Options{HeaderLimit: header - 1}, &LimitError{"bytes of header", uint64(header), header - 1}},
		{"tensors", Options{TensorLimit: 1}, &LimitError{"tensors", 2, 1}},
		{"rank", Options{RankLimit: 1}, &LimitError{"dimensions", 2, 1}},
		{"bytes", Options{ByteLimit: 2}, &LimitError{"bytes of tensors", 3, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for name, read := range readers {
				_, _, err := read(t, file, c.options)
				if c.want == nil {
					require.NoError(t, err, name)
				} else {
					require.Equal(t, c.want, err, name)
				}
			}
		})
	}
	_, err := NewReader(bytes.NewReader(bytes.Repeat([]byte{0xff}, 8)), Options{})
	require.Equal(t, &LimitError{"bytes of header", math.MaxUint64, maxHeader}, err)
	deep := entries(`"dtype":"U8","shape":[` + strings.Repeat("1,", tensor.MaxRank) + `1],"data_offsets":[0,1]`)
	_, err = NewReader(bytes.NewReader(build(deep)), Options{RankLimit: 1000})
	require.Equal(t, &LimitError{"dimensions", tensor.MaxRank + 1, tensor.MaxRank}, err)
}

// meter is an allocator that records the requested sizes.
type meter struct {
	sizes  []int
	refuse int // sizes from here on fail; 0 for none
}

var errRefused = errors.New("refused")

func (m *meter) Alloc(size int) (*tensor.Storage, error) {
	if m.refuse > 0 && size >= m.refuse {
		return nil, errRefused
	}
	m.sizes = append(m.sizes, size)
	return tensor.Heap{}.Alloc(size)
}

// TestMemoryFollowsTheBytes checks that a header that claims terabytes of data, or a huge header,
// makes the reader allocate memory only in proportion to the bytes that follow.
func TestMemoryFollowsTheBytes(t *testing.T) {
	for _, have := range []int{0, 1, initialAlloc, 3 * initialAlloc, 5 * initialAlloc} {
		var m meter
		file := build(one(1<<40), make([]byte, have)...)
		_, _, err := Decode(bytes.NewReader(file), Options{Allocator: &m})
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		for _, size := range m.sizes {
			require.LessOrEqual(t, size, max(initialAlloc, 4*have))
		}
	}
	header := binary.LittleEndian.AppendUint64(nil, 99_000_000)
	require.Less(t, testing.AllocsPerRun(5, func() {
		_, err := NewReader(bytes.NewReader(append(header, "{}"...)), Options{})
		require.Error(t, err)
	}), 50.0)
}

func TestLargeTensorFromStream(t *testing.T) {
	for _, size := range []int{initialAlloc - 1, initialAlloc, initialAlloc + 1, 4 * initialAlloc, 9*initialAlloc + 5} {
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(i * i >> 8)
		}
		pool := tensor.NewPool(tensor.PoolOptions{})
		r, err := NewReader(iotest.HalfReader(bytes.NewReader(build(one(size), data...))), Options{Allocator: pool})
		require.NoError(t, err)
		info, x, err := r.Next()
		require.NoError(t, err)
		require.Equal(t, "x", info.Name)
		require.True(t, bytes.Equal(data, elements(t, x)))
		x.Release()
		require.Zero(t, pool.Stats().InUse, "what was outgrown went back to the pool")
	}
}

func TestAllocatorFails(t *testing.T) {
	file := build(one(3*initialAlloc), make([]byte, 3*initialAlloc)...)
	for name, read := range readers {
		for _, refuse := range []int{1, 2 * initialAlloc} {
			_, _, err := read(t, file, Options{Allocator: &meter{refuse: refuse}})
			require.ErrorIs(t, err, errRefused, name)
		}
	}
}

func TestErrorOfTheStream(t *testing.T) {
	broken := errors.New("wire cut")
	file := build(entries(`"dtype":"U8","shape":[2],"data_offsets":[0,2]`, `"dtype":"U16","shape":[1],"data_offsets":[2,4]`), 1, 2, 3, 4)
	for n := range len(file) + 1 {
		r, err := NewReader(io.MultiReader(bytes.NewReader(file[:n]), iotest.ErrReader(broken)), Options{})
		for err == nil {
			_, _, err = r.Next()
			if _, skipped := errors.AsType[*DTypeError](err); skipped {
				err = nil
			}
		}
		require.ErrorIs(t, err, broken, "after %d bytes", n)
		if r != nil {
			_, _, again := r.Next()
			require.Equal(t, err, again, "the error stays")
		}
	}
}

// TestReaderStopsBehindTheLastTensor checks that a Reader reads no byte after the last tensor, so
// that one stream can contain several files, one after the other.
func TestReaderStopsBehindTheLastTensor(t *testing.T) {
	stream := bytes.NewReader(append(build(one(2), 1, 2), build(one(1), 3)...))
	for _, want := range [][]byte{{1, 2}, {3}} {
		r, err := NewReader(stream, Options{})
		require.NoError(t, err)
		_, x, err := r.Next()
		require.NoError(t, err)
		require.Equal(t, want, elements(t, x))
	}
	require.Zero(t, stream.Len())
}
