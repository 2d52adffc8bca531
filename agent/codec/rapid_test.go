package codec

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// scalarTypes are the types without elements from which types are generated.
var scalarTypes = []reflect.Type{
	reflect.TypeFor[bool](), reflect.TypeFor[int](), reflect.TypeFor[int8](), reflect.TypeFor[uint16](), reflect.TypeFor[uint64](),
	reflect.TypeFor[float32](), reflect.TypeFor[float64](), reflect.TypeFor[complex64](), reflect.TypeFor[complex128](),
	reflect.TypeFor[string](), reflect.TypeFor[[]byte](), reflect.TypeFor[[3]byte](), reflect.TypeFor[struct{}](), reflect.TypeFor[any](),
}

// drawType returns a random type that can be encoded, nested at most depth deep.
func drawType(t *rapid.T, depth int) reflect.Type {
	forms := 6
	if depth == 0 {
		forms = 1
	}
	switch rapid.IntRange(0, forms-1).Draw(t, "form") {
	case 1:
		return reflect.SliceOf(drawType(t, depth-1))
	case 2:
		return reflect.ArrayOf(rapid.IntRange(0, 3).Draw(t, "length"), drawType(t, depth-1))
	case 3:
		return reflect.MapOf(reflect.TypeFor[string](), drawType(t, depth-1))
	case 4:
		return reflect.PointerTo(drawType(t, depth-1))
	case 5:
		var fields []reflect.StructField
		for i := range rapid.IntRange(0, 4).Draw(t, "fields") {
			fields = append(fields, reflect.StructField{Name: fmt.Sprintf("F%d", i), Type: drawType(t, depth-1)})
		}
		return reflect.StructOf(fields)
	default:
		return rapid.SampledFrom(scalarTypes).Draw(t, "scalar")
	}
}

// drawValue sets v to a random value of its type. NaN is excluded because it is not equal to
// itself.
func drawValue(t *rapid.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "bool"))
	case reflect.Int:
		v.SetInt(rapid.Int64().Draw(t, "int"))
	case reflect.Int8:
		v.SetInt(int64(rapid.Int8().Draw(t, "int8")))
	case reflect.Uint8, reflect.Uint16:
		v.SetUint(uint64(rapid.Uint8().Draw(t, "uint")))
	case reflect.Uint64:
		v.SetUint(rapid.Uint64().Draw(t, "uint64"))
	case reflect.Float32, reflect.Float64:
		v.SetFloat(float64(rapid.Float32().Draw(t, "float")))
	case reflect.Complex64, reflect.Complex128:
		v.SetComplex(complex(float64(rapid.Float32().Draw(t, "re")), float64(rapid.Float32().Draw(t, "im"))))
	case reflect.String:
		v.SetString(rapid.String().Draw(t, "string"))
	case reflect.Interface:
		if leaf := rapid.SampledFrom(scalarTypes[:11]).Draw(t, "dynamic"); rapid.Bool().Draw(t, "any") {
			inner := reflect.New(leaf).Elem()
			drawValue(t, inner)
			v.Set(inner)
		}
	default:
		drawParts(t, v)
	}
}

// drawParts sets v, a slice, array, map, pointer or struct, to a value with random elements, or
// leaves a slice, map or pointer nil.
func drawParts(t *rapid.T, v reflect.Value) {
	n := rapid.IntRange(-1, 3).Draw(t, "n") // -1 is nil
	switch v.Kind() {
	case reflect.Slice:
		if n >= 0 {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
		}
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			drawValue(t, v.Index(i))
		}
	case reflect.Map:
		if n >= 0 {
			v.Set(reflect.MakeMap(v.Type()))
		}
		for i := range max(0, n) {
			elem := reflect.New(v.Type().Elem()).Elem()
			drawValue(t, elem)
			v.SetMapIndex(reflect.ValueOf(fmt.Sprint(i)), elem)
		}
	case reflect.Pointer:
		if n >= 0 {
			v.Set(reflect.New(v.Type().Elem()))
			drawValue(t, v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			drawValue(t, v.Field(i))
		}
	}
}

func TestAnyType(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		v := reflect.New(drawType(rt, 4))
		drawValue(rt, v.Elem())
		r := NewRegistry()
		data, _ := encode(t, r, v.Interface())
		got := reflect.New(v.Type().Elem())
		require.NoError(rt, decode(t, r, got.Interface(), data, nil))
		require.Equal(rt, v.Interface(), got.Interface())

		var nothing struct{ Other int }
		if v.Elem().Kind() == reflect.Struct {
			require.NoError(rt, decode(t, r, &nothing, data, nil), "all of it can be skipped")
		}
	})
}

// TestAnyTwoVersions checks that if each end has only some fields of a struct, in another order,
// decoding keeps the fields that both have and sets the others to zero.
func TestAnyTwoVersions(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var fields [2][]reflect.StructField
		for i := range rapid.IntRange(1, 5).Draw(rt, "fields") {
			f := reflect.StructField{Name: fmt.Sprintf("F%d", i), Type: drawType(rt, 2)}
			has := rapid.IntRange(0, 2).Draw(rt, "who has it")
			if has != 0 {
				fields[0] = append(fields[0], f)
			}
			if has != 1 {
				fields[1] = append([]reflect.StructField{f}, fields[1]...)
			}
		}
		from, to := reflect.New(reflect.StructOf(fields[0])), reflect.New(reflect.StructOf(fields[1]))
		drawValue(rt, from.Elem())
		drawValue(rt, to.Elem())
		require.NoError(rt, sent(t, from.Interface(), to.Interface()))
		for _, f := range fields[1] {
			want := from.Elem().FieldByName(f.Name)
			if !want.IsValid() {
				want = reflect.Zero(f.Type)
			}
			require.Equal(rt, want.Interface(), to.Elem().FieldByName(f.Name).Interface())
		}
	})
}

// drawView returns a random view of m, made from it in at most three steps, or m itself.
func drawView(t *rapid.T, m *tensor.Tensor) *tensor.Tensor {
	for range rapid.IntRange(0, 3).Draw(t, "steps") {
		if m.Rank() == 0 {
			return m
		}
		var err error
		dim := rapid.IntRange(0, m.Rank()-1).Draw(t, "dim")
		switch size := m.Shape()[dim]; rapid.IntRange(0, 3).Draw(t, "step") {
		case 0:
			m, err = m.Transpose(0, dim)
		case 1:
			start := rapid.IntRange(0, size).Draw(t, "start")
			m, err = m.Slice(dim, start, rapid.IntRange(start, size).Draw(t, "stop"), rapid.IntRange(1, 3).Draw(t, "stride"))
		case 2:
			if size > 0 {
				m, err = m.Select(dim, rapid.IntRange(0, size-1).Draw(t, "index"))
			}
		case 3:
			m, err = m.Expand(append([]int{2}, m.Shape()...)...)
		}
		require.NoError(t, err)
	}
	return m
}

func TestAnyViews(t *testing.T) {
	r := NewRegistry()
	rapid.Check(t, func(rt *rapid.T) {
		bases := []*tensor.Tensor{arange(t, 6, 7), arange(t, 40, 3), arange(t, 300)}
		var was []*tensor.Tensor
		whole := map[*tensor.Storage]int{}
		for range rapid.IntRange(1, 6).Draw(rt, "views") {
			v := drawView(rt, rapid.SampledFrom(bases).Draw(rt, "base"))
			was = append(was, v)
			whole[v.Storage()] = v.Storage().Len()
		}
		data, tensors := encode(t, r, &was)
		var got []*tensor.Tensor
		require.NoError(rt, decode(t, r, &got, data, tensors))
		for i := range was {
			requireSame(t, was[i], got[i])
		}
		bytes, most := 0, 0
		for _, part := range tensors {
			bytes += part.Buffer.Len()
		}
		for _, n := range whole {
			most += n
		}
		require.LessOrEqual(rt, bytes, most+16*len(was), "no memory is sent twice")
	})
}
