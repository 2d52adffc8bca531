package codec

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	hashfnv "hash/fnv"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// bytesOf returns the bytes that text describes: hexadecimal digits with spaces between them; texts
// in single quotes, preceded by their length; and schemas in brackets, before which it inserts
// their hash and length.
func bytesOf(t *testing.T, text string) []byte {
	t.Helper()
	var out []byte
	schema := 0 // where it begins
	for _, token := range strings.Fields(text) {
		switch token {
		case "[":
			schema = len(out)
			continue
		case "]":
			p := bytes.Clone(out[schema:])
			out = append(append(append(out[:schema], hashOf(p)...), byte(len(p))), p...)
			continue
		}
		if quoted, ok := strings.CutPrefix(token, "'"); ok {
			out = append(append(out, byte(len(quoted)-1)), strings.TrimSuffix(quoted, "'")...)
			continue
		}
		p, err := hex.DecodeString(token)
		require.NoError(t, err)
		out = append(out, p...)
	}
	return out
}

// hashOf returns the 64-bit FNV-1a hash of an encoded schema as 8 bytes in little endian order.
func hashOf(schema []byte) []byte {
	h := hashfnv.New64a()
	h.Write(schema)
	return binary.LittleEndian.AppendUint64(nil, h.Sum64())
}

type none struct{}

type point struct {
	X   int `tensorpipe:"x"`
	Tag string
	F   []float32
}

// renamedPoint is described in messages as a point.
type renamedPoint struct {
	_ struct{} `tensorpipe:"codec.point"`
	X int      `tensorpipe:"x"`
	T string   `tensorpipe:"Tag"`
	F []float32
}

// golden has schema and value of each kind as docs/wire.md specifies them. Later versions must
// decode these bytes.
var golden = []struct {
	ptr           any
	schema, value string
}{
	{ptr(true), "01", "01"},
	{ptr([2]byte{7, 200}), "0d 02 02", "07 c8"},
	{ptr(-3), "03", "05"},
	{ptr(int64(300)), "03", "d804"},
	{ptr(uint16(300)), "04", "ac02"},
	{ptr(float32(1)), "05", "0000803f"},
	{ptr(1.0), "06", "000000000000f03f"},
	{ptr(complex64(1)), "07", "0000803f 00000000"},
	{ptr(1i), "08", "0000000000000000 000000000000f03f"},
	{ptr("ab"), "09", "'ab'"},
	{ptr([]byte("ab")), "0a", "03 6162"},
	{ptr([]byte(nil)), "0a", "00"},
	{ptr(time.Unix(1, 2).UTC()), "0b", "02 02 00"},
	{ptr(time.Unix(-1, 0).In(time.FixedZone("", -60))), "0b", "01 00 01 77"},
	{ptr([]string{"a", ""}), "0c 09", "03 'a' ''"},
	{ptr([]none{{}, {}}), "0c 0f 'codec.none' 00", "03"},
	{ptr(map[string]bool{"a": true}), "0e 09 01", "02 'a' 01"},
	{&point{X: 1, Tag: "ab", F: []float32{1}}, "0f 'codec.point' 03 'x' 03 'Tag' 09 'F' 0c05", "02 'ab' 02 0000803f"},
	{&renamedPoint{X: 1, T: "ab", F: []float32{1}}, "0f 'codec.point' 03 'x' 03 'Tag' 09 'F' 0c05", "02 'ab' 02 0000803f"},
	{&[2]*node{}, "0d 02 11 0f 'codec.node' 05 'Name' 09 'Next' 11 10 00 'More' 0c 11 10 00 'Any' 12 'Map' 0e 09 11 10 00", "00 00"},
	{twice(ptr(1)), "0c 11 03", "04 01 02 00 02"},
	{new(any), "12", "00"},
	{new(error), "13", "00"},
	{ptr(io.EOF), "13", "01 'io.EOF' 'EOF'"},
	{ptr(error(strangeError{})), "13", "03 'codec.strangeError' 'strange' 00"},
	{new(*tensor.Tensor), "14", "00"},
	{new(*tensor.Sparse), "15", "00"},
	{new(none), "0f 'codec.none' 00", ""},
	{ptr(failing{}), "17", "'x'"},
}

// twice returns a pointer to a new slice that holds p, nil and p.
func twice(p *int) *[]*int { return &[]*int{p, nil, p} }

func TestGoldenValues(t *testing.T) {
	r := NewRegistry()
	for _, c := range golden {
		schema, value := bytesOf(t, c.schema), append([]byte{0}, bytesOf(t, c.value)...)
		data, _ := encode(t, r, c.ptr)
		want := binary.LittleEndian.AppendUint32([]byte{version}, uint32(len(value)))
		want = append(append(want, value...), 1, 0, 0)
		want = append(append(want, hashOf(schema)...), byte(len(schema)))
		want = append(append(want, schema...), 0, 0, 0)
		require.Equal(t, hex.EncodeToString(want), hex.EncodeToString(data), "%T %s", c.ptr, c.value)
	}
}

// goldenTables has messages whose tables are not trivial.
var goldenTables = []struct {
	name           string
	ptr            any
	values, tables string
}{
	{"interface", ptr(any(&point{})), "00 02 01 00 00 00", "02" +
		" '' 00 [ 12 ]" +
		" 'point' 01 [ 11 0f 'codec.point' 03 'x' 03 'Tag' 09 'F' 0c 05 ]" +
		" 00 00 01 'head' 'x'"},
	{"typed error", ptr(error(&codeError{Code: 1})), "00 02 0d 636f646520313a203c6e696c3e 01 01 02 00", "02" +
		" '' 00 [ 13 ]" +
		" 'codeError' 01 [ 11 0f 'codec.codeError' 02 'Code' 03 'Err' 13 ]" +
		" 00 00 01 'head' 'x'"},
	{"own", ptr(secretive{child: nil}), "00 10000000 00 00 00 00 0000000000000000 00 00 01 00", "02" +
		" '' 00 [ 16 'codec.secretive' ]" +
		" '' 00 [ 11 16 'codec.secretive' ]" +
		" 00 00 01 'head' 'x'"},
	{"tensors", transposed(), "00 04 01 02 01", "01" +
		" '' 00 [ 0c 14 ]" +
		" 01 18 ''" + // 24 bytes on the CPU
		" 02 09 04 00 00 02 03" + // f32[2,3], contiguous
		" 09 05 00 01 02 02 01 03" + // f32[2,2] from element 1, strides 1 and 3
		" 01 'head' 'x'"},
}

// transposed returns a pointer to a slice that holds a 2 x 3 tensor, a transposed view of two of
// its columns, and the tensor again.
func transposed() *[]*tensor.Tensor {
	m, _ := tensor.Zeros(tensor.F32, 2, 3)
	right, _ := m.Narrow(1, 1, 2)
	right, _ = right.Transpose(0, 1)
	return &[]*tensor.Tensor{m, right, m}
}

func TestGoldenTables(t *testing.T) {
	r := NewRegistry()
	require.NoError(t, r.Register("point", point{}))
	require.NoError(t, r.Register("codeError", codeError{}))
	for _, c := range goldenTables {
		t.Run(c.name, func(t *testing.T) {
			e := NewEncoder(r, Limits{})
			require.NoError(t, e.Encode(c.ptr))
			e.SetHeader("head", []byte("x"))
			data, _, err := e.Finish()
			require.NoError(t, err)
			values := bytesOf(t, c.values)
			want := binary.LittleEndian.AppendUint32([]byte{version}, uint32(len(values)))
			want = append(want, values...)
			want = append(want, bytesOf(t, c.tables)...)
			require.Equal(t, hex.EncodeToString(want), hex.EncodeToString(data))
		})
	}
}
