package codec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"reflect"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// forged returns a message that has the given encoded schema and value but no tensors. If schema is
// nil, it is that of the type that ptr points to. If lie is true, the message has the hash of that
// type, as if both ends had the same type; otherwise it has a different hash, so that the receiver
// decodes the schema.
func forged(t testing.TB, ptr any, schema []byte, lie bool, value ...byte) []byte {
	t.Helper()
	p, err := NewRegistry().plan(reflect.TypeOf(ptr).Elem())
	require.NoError(t, err)
	text, hash := p.encoded()
	if schema == nil {
		schema = text
	}
	if !lie {
		hash++
	}
	m := binary.LittleEndian.AppendUint32([]byte{version}, uint32(len(value)+1))
	m = append(append(m, 0), value...)
	m = append(m, 1, 0, 0) // one type, no name, not a pointer
	m = binary.LittleEndian.AppendUint64(m, hash)
	m = append(binary.AppendUvarint(m, uint64(len(schema))), schema...)
	return append(m, 0, 0, 0)
}

// uvarint returns v encoded as a varint.
func uvarint(v uint64) []byte { return binary.AppendUvarint(nil, v) }

// TestReadBeyondMemory checks that ReadBytes and ReadString return no bytes and ErrLimit if the
// copy would exceed Limits.MemoryBytes.
func TestReadBeyondMemory(t *testing.T) {
	e := NewEncoder(NewRegistry(), Limits{})
	e.WriteBytes(make([]byte, 100))
	data, _, err := e.Finish()
	require.NoError(t, err)
	d := NewDecoder(NewRegistry(), Limits{MemoryBytes: 50})
	require.NoError(t, d.Reset(data))
	p, err := d.ReadBytes()
	require.ErrorIs(t, err, ErrLimit)
	require.Nil(t, p)
	require.NoError(t, d.Reset(data))
	s, err := d.ReadString()
	require.ErrorIs(t, err, ErrLimit)
	require.Empty(t, s)
}

func TestForgedValues(t *testing.T) {
	type wide struct {
		A int
		B [1 << 16]int
	}
	huge := uvarint(math.MaxInt64)
	structOf := func(fields ...byte) []byte { return append([]byte{byte(kindStruct), 1, 's'}, fields...) }
	for name, c := range map[string]struct {
		ptr    any
		schema []byte
		value  []byte
		want   error
	}{
		"no bool":                  {new(bool), nil, []byte{2}, ErrCorrupt},
		"long number":              {new(uint64), nil, bytes.Repeat([]byte{0xff}, 11), ErrCorrupt},
		"long string":              {new(string), nil, huge, ErrCorrupt},
		"string beyond int":        {new(string), nil, uvarint(math.MaxUint64), ErrCorrupt},
		"long bytes":               {new([]byte), nil, huge, ErrCorrupt},
		"long slice":               {new([]int), nil, huge, ErrCorrupt},
		"slice of its bytes":       {new([]int), nil, []byte{4, 0, 0}, ErrCorrupt},
		"slice of nothings":        {new([]struct{}), nil, huge, ErrLimit},
		"slice of wide things":     {new([]wide), append([]byte{byte(kindSlice)}, structOf(0)...), uvarint(1 << 20), ErrLimit},
		"pointers to wide things":  {new([]*wide), append([]byte{byte(kindSlice), byte(kindPointer)}, structOf(0)...), []byte{6, 1, 3, 5, 7, 9}, ErrLimit},
		"long map":                 {new(map[string]int), nil, huge, ErrCorrupt},
		"map of nothings":          {new(map[struct{}]struct{}), nil, huge, ErrCorrupt},
		"key twice":                {new(map[int]int), nil, []byte{3, 2, 0, 2, 0}, ErrCorrupt},
		"object that is not there": {new(*int), nil, []byte{4}, ErrCorrupt},
		"object out of turn":       {new(*int), nil, []byte{3, 0}, ErrCorrupt},
		"object again as new":      {new([2]*int), nil, []byte{1, 0, 1, 0}, ErrCorrupt},
		"object within itself":     {new(*node), nil, append([]byte{1, 0}, 2), ErrCorrupt},
		"object of two types": {new(struct {
			A *int
			B *string
		}), nil, []byte{1, 0, 2}, ErrType},
		"type that is not there":    {new(any), nil, []byte{9}, ErrCorrupt},
		"value without a name":      {new(any), nil, []byte{1, 0}, ErrType},
		"tensor that is not there":  {new(*tensor.Tensor), nil, []byte{1}, ErrCorrupt},
		"sparse of no tensors":      {new(*tensor.Sparse), nil, []byte{1, 0, 0, 0}, ErrCorrupt},
		"unknown error":             {new(error), nil, []byte{4}, ErrCorrupt},
		"error that wraps nil":      {new(error), nil, []byte{3, 0, 0, 1, 0}, ErrCorrupt},
		"error that wraps many":     {new(error), nil, append([]byte{3, 0, 0}, huge...), ErrCorrupt},
		"own encoding, too long":    {new(secretive), nil, []byte{255, 255, 255, 255}, ErrCorrupt},
		"zone far away":             {new(time.Time), nil, []byte{0, 0, 1, 255, 255, 255, 255, 15}, ErrCorrupt},
		"unknown zone":              {new(time.Time), nil, []byte{0, 0, 2, 0}, ErrCorrupt},
		"too many nanoseconds":      {new(time.Time), nil, append(append([]byte{0}, uvarint(1e9)...), 0), ErrCorrupt},
		"no schema":                 {new(int), []byte{}, []byte{0}, ErrCorrupt},
		"unknown kind":              {new(int), []byte{byte(kindBinary) + 1}, []byte{0}, ErrCorrupt},
		"kind 0":                    {new(int), []byte{0}, []byte{0}, ErrCorrupt},
		"more behind the schema":    {new(int), []byte{byte(kindInt), 1}, []byte{0}, ErrCorrupt},
		"endless types":             {new([]int), bytes.Repeat([]byte{byte(kindSlice)}, 1000), []byte{0}, ErrLimit},
		"long schema":               {new(int), make([]byte, maxSchema+1), []byte{0}, ErrLimit},
		"struct within itself":      {new(part1), structOf(1, 1, 'A', byte(kindBack), 0), []byte{0}, ErrCorrupt},
		"struct in its own array":   {new(part1), structOf(1, 1, 'A', byte(kindArray), 2, byte(kindBack), 0), []byte{0}, ErrCorrupt},
		"struct that is not there":  {new(part1), structOf(1, 1, 'A', byte(kindBack), 1), []byte{0}, ErrCorrupt},
		"struct of many fields":     {new(part1), structOf(huge...), []byte{0}, ErrCorrupt},
		"field twice":               {new(part1), structOf(2, 1, 'A', byte(kindInt), 1, 'A', byte(kindInt)), []byte{0, 0}, ErrCorrupt},
		"skipped, too long":         {new(part1), structOf(1, 1, 'X', byte(kindString)), huge, ErrCorrupt},
		"skipped array, too long":   {new(part1), structOf(append(append([]byte{1, 1, 'X', byte(kindArray)}, huge...), byte(kindInt))...), []byte{0}, ErrCorrupt},
		"skipped bytes, too long":   {new(part1), structOf(1, 1, 'X', byte(kindBytes)), huge, ErrCorrupt},
		"skipped object, not there": {new(part1), structOf(1, 1, 'X', byte(kindPointer), byte(kindInt)), []byte{2}, ErrCorrupt},
		"skipped error, unknown":    {new(part1), structOf(1, 1, 'X', byte(kindError)), []byte{5}, ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			err := decode(t, NewRegistry(), c.ptr, forged(t, c.ptr, c.schema, c.schema == nil, c.value...), nil)
			require.ErrorIs(t, err, c.want)
		})
	}
}

// TestForgedTrees checks that a type whose size is exponential in its nesting is rejected at once,
// whether its values take no bytes or more bytes than the message has.
func TestForgedTrees(t *testing.T) {
	for leaf, want := range map[kind]string{kindStruct: "2 bytes of values were not decoded", kindBool: "takes at least 2147483647 bytes"} {
		s := []byte{byte(kindStruct), 0, 1, 1, 'X'}
		for range 40 { // each level contains the next one twice
			s = append(s, byte(kindStruct), 0, 2, 1, 'a')
		}
		if leaf == kindStruct {
			s = append(s, byte(kindStruct), 0, 0)
		} else {
			s = append(s, byte(kindBool))
		}
		for i := range 40 {
			s = append(s, 1, 'b')
			switch {
			case i == 0 && leaf == kindStruct:
				s = append(s, byte(kindBack), 41)
			case i == 0:
				s = append(s, byte(kindBool))
			default:
				s = append(s, byte(kindBack), byte(41-i))
			}
		}
		err := decode(t, NewRegistry(), new(part1), forged(t, new(part1), s, false, 1, 1), nil)
		require.ErrorIs(t, err, ErrCorrupt)
		require.ErrorContains(t, err, want)
	}
}

func TestForgedPrefix(t *testing.T) {
	r := NewRegistry()
	good, _ := encode(t, r, ptr(7))
	for name, change := range map[string]func(p []byte) []byte{
		"empty":         func(p []byte) []byte { return nil },
		"version":       func(p []byte) []byte { p[0]++; return p },
		"length":        func(p []byte) []byte { p[4] = 0xff; return p },
		"no tables":     func(p []byte) []byte { return p[:7] },
		"many types":    func(p []byte) []byte { return append(p[:7], 0xff, 0xff, 0xff, 0x7f) },
		"pointer flag":  func(p []byte) []byte { p[9] = 2; return p },
		"many parts":    func(p []byte) []byte { return append(p[:len(p)-3], 0xff, 0xff, 0xff, 0x7f, 0, 0) },
		"many views":    func(p []byte) []byte { return append(p[:len(p)-2], 0xff, 0xff, 0xff, 0x7f, 0) },
		"many headers":  func(p []byte) []byte { return append(p[:len(p)-1], 0xff, 0xff, 0xff, 0x7f) },
		"headers twice": func(p []byte) []byte { return append(p[:len(p)-1], 2, 1, 'a', 0, 1, 'a', 0) },
		"device": func(p []byte) []byte {
			return append(p[:len(p)-3], 1, 0, 1, 'x', 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0, 0)
		},
		"dimensions": func(p []byte) []byte { return append(append(p[:len(p)-2], 1, 1, 130, 1), make([]byte, 100)...) },
	} {
		t.Run(name, func(t *testing.T) {
			err := NewDecoder(r, Limits{}).Reset(change(bytes.Clone(good)))
			require.ErrorIs(t, err, ErrCorrupt)
		})
	}
	d := NewDecoder(r, Limits{Bytes: len(good) - 1})
	require.ErrorIs(t, d.Reset(good), ErrLimit)
	require.ErrorIs(t, d.Decode(new(int)), ErrLimit, "later calls return the same error")
	require.ErrorIs(t, d.Supply(nil), ErrLimit)
	require.ErrorIs(t, d.Finish(), ErrLimit)
}

// viewOf returns a message with one part of the given number of bytes, and one tensor whose row in
// the table of views is given.
func viewOf(bytes int, row ...byte) []byte {
	m := []byte{version, 2, 0, 0, 0, 0, 1, 1, 0, 0}
	text, hash := (&schema{kind: kindTensor}).encoded()
	m = binary.LittleEndian.AppendUint64(m, hash)
	m = append(append(m, byte(len(text))), text...)
	m = append(binary.AppendUvarint(append(m, 1), uint64(bytes)), 0)
	return append(append(append(m, 1), row...), 0)
}

func TestForgedTensors(t *testing.T) {
	f32 := byte(tensor.F32)
	huge := uvarint(math.MaxInt64)
	for name, c := range map[string]struct {
		row  []byte
		want error
	}{
		"good":              {[]byte{f32, 2, 0, 0, 4}, nil},
		"good, strided":     {[]byte{f32, 3, 0, 1, 2, 2}, nil},
		"no dtype":          {[]byte{0, 2, 0, 0, 4}, ErrCorrupt},
		"unknown dtype":     {[]byte{99, 2, 0, 0, 4}, ErrCorrupt},
		"no such part":      {[]byte{f32, 2, 1, 0, 4}, ErrCorrupt},
		"beyond the part":   {[]byte{f32, 2, 0, 0, 5}, ErrCorrupt},
		"offset beyond":     {[]byte{f32, 2, 0, 4, 1}, ErrCorrupt},
		"stride beyond":     {[]byte{f32, 3, 0, 0, 2, 4}, ErrCorrupt},
		"too many elements": {append([]byte{f32, 4, 0, 0}, append(huge, huge...)...), ErrCorrupt},
		"no int":            {append([]byte{f32, 2, 0, 0}, uvarint(math.MaxUint64)...), ErrCorrupt},
		"offset no int":     {append([]byte{f32, 2, 0}, append(uvarint(math.MaxUint64), 1)...), ErrCorrupt},
		"vast by stride 0":  {append(append([]byte{f32, 3, 0, 0}, uvarint(1<<40)...), 0), ErrLimit},
	} {
		t.Run(name, func(t *testing.T) {
			d := NewDecoder(NewRegistry(), Limits{})
			require.NoError(t, d.Reset(viewOf(16, c.row...)))
			s, err := tensor.Heap{}.Alloc(16)
			require.NoError(t, err)
			require.NoError(t, d.Supply([]*tensor.Storage{s}))
			var got *tensor.Tensor
			err = d.Decode(&got)
			require.ErrorIs(t, err, c.want)
		})
	}
}

// TestForgedSparse checks that a sparse tensor that claims very many values which take no memory is
// rejected with ErrLimit, and one whose indices are invalid with ErrCorrupt.
func TestForgedSparse(t *testing.T) {
	indices := must(t)(tensor.Zeros(tensor.I64, 0, 1000))
	values := must(t)(tensor.Zeros(tensor.F32, 1000, 0))
	s, err := tensor.NewSparse(indices, values, 0)
	require.NoError(t, err)
	data, tensors := encode(t, NewRegistry(), &s)
	require.NoError(t, decode(t, NewRegistry(), new(*tensor.Sparse), data, tensors))

	many := uvarint(1 << 30)
	forged := bytes.ReplaceAll(data, uvarint(1000), many)
	require.NotEqual(t, data, forged)
	require.ErrorIs(t, decode(t, NewRegistry(), new(*tensor.Sparse), forged, tensors), ErrLimit)

	data, tensors = encode(t, NewRegistry(), ptr(must2(tensor.NewSparse(must(t)(tensor.FromSlice([]int64{1}, 1, 1)), arange(t, 1), 2))(t)))
	require.NoError(t, tensor.Set(must(t)(tensor.FromBuffer(tensors[0].Buffer, tensor.I64, 1)), int64(2), 0))
	err = decode(t, NewRegistry(), new(*tensor.Sparse), data, tensors)
	require.ErrorIs(t, err, ErrCorrupt)
	var index *tensor.IndexError
	require.ErrorAs(t, err, &index)
}

func must2[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}

// TestForgedEmptyMaps checks that decoding many empty maps with large elements allocates no more
// memory than the size of the message allows.
func TestForgedEmptyMaps(t *testing.T) {
	type wide [1 << 18]int
	maps := make([]map[int]wide, 5000)
	for i := range maps {
		maps[i] = map[int]wide{}
	}
	data, _ := encode(t, NewRegistry(), &maps)
	var before, after runtime.MemStats
	var got []map[int]wide
	runtime.ReadMemStats(&before)
	require.NoError(t, decode(t, NewRegistry(), &got, data, nil))
	runtime.ReadMemStats(&after)
	require.Len(t, got, len(maps))
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(minMemory+memoryFactor*len(data)))

	maps = []map[int]wide{{1: {}}}
	data, _ = encode(t, NewRegistry(), &maps)
	require.NoError(t, decode(t, NewRegistry(), &got, data, nil))
}

// TestEveryByte checks that a message in which any one byte was changed is decoded or rejected with
// a documented error, and decoding allocates no more memory than the size of the message allows.
func TestEveryByte(t *testing.T) {
	r := NewRegistry()
	data, tensors := sample(t, r)
	storages := copyStorages(t, tensors)
	d := NewDecoder(r, Limits{})
	var before, after runtime.MemStats
	for i := range data {
		for _, b := range []byte{0, 1, 2, 0x7f, 0x80, 0xff} {
			changed := bytes.Clone(data)
			changed[i] = b
			for _, to := range []any{new(everything), new(part1)} {
				runtime.ReadMemStats(&before)
				err := d.Reset(changed)
				if err == nil && d.Supply(storages) == nil {
					err = d.Decode(to)
				}
				runtime.ReadMemStats(&after)
				require.LessOrEqual(t, after.TotalAlloc-before.TotalAlloc, uint64(2*minMemory+memoryFactor*len(data)), "byte %d is %#x", i, b)
				require.True(t, err == nil || known(err), "byte %d is %#x: %v", i, b, err)
			}
		}
	}
}

// known reports whether err is an *Error that matches ErrCorrupt, ErrLimit, ErrType or ErrStorage,
// as Decode documents.
func known(err error) bool {
	var e *Error
	for _, sentinel := range []error{ErrCorrupt, ErrLimit, ErrType, ErrStorage} {
		if errors.Is(err, sentinel) {
			return errors.As(err, &e)
		}
	}
	return false
}
