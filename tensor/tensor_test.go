package tensor

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// arange returns a contiguous I64 tensor of the given shape whose elements are 0, 1, 2, ... in
// row-major order.
func arange(t testing.TB, shape ...int) *Tensor {
	t.Helper()
	n, err := NumElements(shape)
	require.NoError(t, err)
	values := make([]int64, n)
	for i := range values {
		values[i] = int64(i)
	}
	x, err := FromSlice(values, shape...)
	require.NoError(t, err)
	return x
}

// list returns the elements of x, an I64 tensor, in row-major order in a new slice. It reads each
// with At, so that the result does not depend on how x is copied.
func list(t testing.TB, x *Tensor) []int64 {
	t.Helper()
	out := []int64{}
	index := make([]int, x.Rank())
	for range x.Len() {
		v, err := At[int64](x, index...)
		require.NoError(t, err)
		out = append(out, v)
		for i := len(index) - 1; i >= 0; i-- {
			if index[i]++; index[i] < x.Shape()[i] {
				break
			}
			index[i] = 0
		}
	}
	return out
}

func overlong() []int {
	shape := make([]int, MaxRank+1)
	for i := range shape {
		shape[i] = 1
	}
	return shape
}

func TestNumElements(t *testing.T) {
	for _, c := range []struct {
		shape []int
		want  int
	}{
		{nil, 1}, {[]int{5}, 5}, {[]int{2, 3, 4}, 24}, {[]int{0}, 0}, {[]int{3, 0, 2}, 0},
		{[]int{math.MaxInt}, math.MaxInt}, {[]int{0, math.MaxInt}, 0}, {overlong()[1:], 1},
	} {
		n, err := NumElements(c.shape)
		require.NoError(t, err)
		require.Equal(t, c.want, n, "%v", c.shape)
	}
	for _, shape := range [][]int{
		{-1}, {2, -3}, {0, -1}, {math.MinInt}, {-1, -1},
		{math.MaxInt, 2}, {1 << 32, 1 << 32}, {1 << 31, 1 << 31, 2}, {0, 1 << 40, 1 << 40}, {3, math.MaxInt/3 + 1},
		overlong(),
	} {
		_, err := NumElements(shape)
		var typed *ShapeError
		require.ErrorAs(t, err, &typed, "%v", shape)
	}
}

func TestByteSize(t *testing.T) {
	n, err := ByteSize(C128, []int{3, 2})
	require.NoError(t, err)
	require.Equal(t, 96, n)
	_, err = ByteSize(F64, []int{1 << 60})
	require.ErrorAs(t, err, new(*ShapeError))
	_, err = ByteSize(0, []int{1})
	require.ErrorAs(t, err, new(*DTypeError))
	_, err = ByteSize(200, []int{1})
	require.ErrorAs(t, err, new(*DTypeError))
}

func TestConstructorsRefuse(t *testing.T) {
	var shape *ShapeError
	_, err := Zeros(F32, 2, -1)
	require.ErrorAs(t, err, &shape)
	_, err = Zeros(F32, overlong()...)
	require.ErrorAs(t, err, &shape)
	_, err = Zeros(0, 2)
	require.ErrorAs(t, err, new(*DTypeError))
	_, err = Zeros(U8, math.MaxInt)
	require.ErrorAs(t, err, new(*SizeError))
	_, err = FromSlice([]float32{1, 2}, 3)
	require.ErrorAs(t, err, &shape)
	_, err = FromSlice([]float32{}, -1, 0)
	require.ErrorAs(t, err, &shape)
	for _, size := range []int{7, 9} {
		_, err = FromBuffer(device.Bytes(make([]byte, size)), F32, 2)
		require.ErrorAs(t, err, &shape)
	}
	_, err = FromBuffer(device.Host(make([]byte, 4), make([]byte, 4)), F32, 2)
	require.ErrorIs(t, err, ErrNotContiguous)
}

func TestStrided(t *testing.T) {
	s, err := Heap{}.Alloc(40)
	require.NoError(t, err)
	for _, c := range []struct {
		name           string
		shape, strides []int
		offset         int
		ok             bool
	}{
		{"all", []int{10}, []int{1}, 0, true},
		{"last", nil, nil, 9, true},
		{"columns", []int{5, 2}, []int{1, 5}, 0, true},
		{"shared", []int{4, 7}, []int{1, 1}, 0, true},
		{"repeated", []int{1 << 40}, []int{0}, 9, true},
		{"nothing at the end", []int{0}, []int{1}, 10, true},
		{"nothing, any stride", []int{0, 9}, []int{1, math.MaxInt}, 0, true},
		{"one, any stride", []int{1}, []int{math.MaxInt}, 9, true},
		{"behind", nil, nil, 10, false},
		{"one too many", []int{10}, []int{1}, 1, false},
		{"too far apart", []int{4}, []int{4}, 0, false},
		{"nothing behind the end", []int{0}, []int{1}, 11, false},
		{"negative offset", []int{2}, []int{1}, -1, false},
		{"negative offset of nothing", []int{0}, []int{1}, math.MinInt, false},
		{"negative stride", []int{2}, []int{-1}, 5, false},
		{"strides missing", []int{2, 2}, []int{1}, 0, false},
		{"overflow of a product", []int{3}, []int{math.MaxInt}, 0, false},
		{"overflow to zero", []int{5}, []int{1 << 62}, 0, false},
		{"overflow of a sum", []int{2, 2}, []int{math.MaxInt, math.MaxInt}, 0, false},
		{"overflow of the offset", []int{2}, []int{1}, math.MaxInt, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			x, err := Strided(s, F32, c.shape, c.strides, c.offset)
			if !c.ok {
				require.Error(t, err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, len(c.shape), x.Rank())
			require.Equal(t, c.offset, x.Offset())
			require.Same(t, s, x.Storage())
		})
	}
	_, err = Strided(s, 0, nil, nil, 0)
	require.ErrorAs(t, err, new(*DTypeError))
}

func TestStridedCopiesTheDescription(t *testing.T) {
	s, err := Heap{}.Alloc(40)
	require.NoError(t, err)
	shape, strides := []int{2, 5}, []int{5, 1}
	x, err := Strided(s, F32, shape, strides, 0)
	require.NoError(t, err)
	shape[0], strides[0] = 1000, 1000
	require.Equal(t, []int{2, 5}, x.Shape())
	require.Equal(t, []int{5, 1}, x.Strides())
}

func TestTensorOfSlice(t *testing.T) {
	values := []float32{1, 2, 3, 4, 5, 6}
	x, err := FromSlice(values, 2, 3)
	require.NoError(t, err)
	require.Equal(t, F32, x.DType())
	require.Equal(t, []int{2, 3}, x.Shape())
	require.Equal(t, []int{3, 1}, x.Strides())
	require.Equal(t, 6, x.Len())
	require.Equal(t, 24, x.ByteSize())
	require.Equal(t, device.CPU(), x.Device())
	require.Equal(t, "f32[2,3]", x.String())
	require.True(t, x.IsContiguous())

	require.NoError(t, Set[float32](x, -1, 1, 2))
	require.EqualValues(t, -1, values[5], "the slice is the memory")
	same, err := MutableData[float32](x)
	require.NoError(t, err)
	require.Same(t, &values[0], &same[0])
}

func TestElementsOfEveryType(t *testing.T) {
	testElements(t, []bool{true, false, true})
	testElements(t, []uint8{0, 1, 255})
	testElements(t, []int8{-128, 0, 127})
	testElements(t, []int16{math.MinInt16, 1, math.MaxInt16})
	testElements(t, []int32{math.MinInt32, 1, math.MaxInt32})
	testElements(t, []int64{math.MinInt64, 1, math.MaxInt64})
	testElements(t, []Float16{0, 0x3c00, 0xffff})
	testElements(t, []BFloat16{0, 0x3f80, 0xffff})
	testElements(t, []float32{0, -1.5, math.MaxFloat32})
	testElements(t, []float64{0, -1.5, math.MaxFloat64})
	testElements(t, []complex64{0, 1 - 2i, 3i})
	testElements(t, []complex128{0, 1 - 2i, 3i})
}

// testElements checks, as a subtest for the dtype of T, that three different values are stored and
// read unchanged by Set, Data, FromSlice, Fill, At and Scalar, and compared by Equal and AllClose.
func testElements[T Element](t *testing.T, values []T) {
	dtype := DTypeOf[T]()
	t.Run(dtype.String(), func(t *testing.T) {
		x, err := Zeros(dtype, 3)
		require.NoError(t, err)
		for i, v := range values {
			require.NoError(t, Set(x, v, i))
		}
		got, err := Data[T](x)
		require.NoError(t, err)
		require.Equal(t, values, got)
		y, err := FromSlice(values, 3)
		require.NoError(t, err)
		same, err := Equal(x, y)
		require.NoError(t, err)
		require.True(t, same)
		near, err := AllClose(x, y, 0, 0)
		require.NoError(t, err)
		require.Equal(t, dtype != F16 && dtype != BF16, near, "the 16-bit cases hold a NaN")

		require.NoError(t, Fill(x, values[1]))
		for i := range 3 {
			v, err := At[T](x, i)
			require.NoError(t, err)
			require.Equal(t, values[1], v)
		}
		same, err = Equal(x, y)
		require.NoError(t, err)
		require.False(t, same)
		v, err := At[T](Scalar(values[2]))
		require.NoError(t, err)
		require.Equal(t, values[2], v)
	})
}

func TestAccessRefuses(t *testing.T) {
	x := arange(t, 2, 3)
	_, err := At[int32](x, 0, 0)
	require.ErrorAs(t, err, new(*DTypeError))
	require.ErrorAs(t, Set[float64](x, 1, 0, 0), new(*DTypeError))
	require.ErrorAs(t, Fill[float64](x, 1), new(*DTypeError))
	_, err = Data[float64](x)
	require.ErrorAs(t, err, new(*DTypeError))
	for _, index := range [][]int{{2, 0}, {0, 3}, {-1, 0}} {
		_, err = At[int64](x, index...)
		require.ErrorAs(t, err, new(*IndexError), "%v", index)
		require.ErrorAs(t, Set[int64](x, 1, index...), new(*IndexError), "%v", index)
	}
	for _, index := range [][]int{nil, {0}, {0, 0, 0}} {
		_, err = At[int64](x, index...)
		require.ErrorAs(t, err, new(*ShapeError), "%v", index)
	}
	turned, err := x.Transpose(0, 1)
	require.NoError(t, err)
	_, err = Data[int64](turned)
	require.ErrorIs(t, err, ErrNotContiguous)
	_, err = turned.Buffer()
	require.ErrorIs(t, err, ErrNotContiguous)
}

func TestBoolsOfOthers(t *testing.T) {
	x, err := FromBuffer(device.Bytes([]byte{0, 1, 2}), Bool, 3)
	require.NoError(t, err)
	_, err = Data[bool](x)
	require.ErrorAs(t, err, new(*DTypeError))
	v, err := At[bool](x, 2)
	require.NoError(t, err)
	require.Equal(t, true, v)
}

func TestUnalignedMemory(t *testing.T) {
	p := heapBytes(17)[1:]
	x, err := FromBuffer(device.Bytes(p), F64, 2)
	require.NoError(t, err)
	require.NoError(t, Set(x, 1.5, 1))
	v, err := At[float64](x, 1)
	require.NoError(t, err)
	require.Equal(t, 1.5, v)
	_, err = Data[float64](x)
	require.ErrorIs(t, err, ErrUnaligned)
	c, err := x.Clone()
	require.NoError(t, err)
	values, err := Data[float64](c)
	require.NoError(t, err)
	require.Equal(t, []float64{0, 1.5}, values)
}

func TestBufferOfPart(t *testing.T) {
	x := arange(t, 4, 2)
	part, err := x.Narrow(0, 1, 2)
	require.NoError(t, err)
	buf, err := part.Buffer()
	require.NoError(t, err)
	require.Equal(t, 32, buf.Len())
	y, err := FromBuffer(buf, I64, 4)
	require.NoError(t, err)
	require.Equal(t, []int64{2, 3, 4, 5}, list(t, y))
	require.NoError(t, Set[int64](y, 99, 0))
	v, err := At[int64](x, 1, 0)
	require.NoError(t, err)
	require.EqualValues(t, 99, v)
}

func TestTensorOnDevice(t *testing.T) {
	x, err := FromBuffer(device.On(npu, region(48), nil), I64, 2, 3)
	require.NoError(t, err)
	require.Equal(t, npu, x.Device())
	part, err := x.Select(0, 1)
	require.NoError(t, err)
	buf, err := part.Buffer()
	require.NoError(t, err)
	_, offset := buf.Memory()
	require.Equal(t, 24, offset)
	require.Equal(t, 24, buf.Len())

	host := arange(t, 2, 3)
	turned, err := x.Transpose(0, 1)
	require.NoError(t, err)
	for name, call := range map[string]func() error{
		"At":       func() error { _, err := At[int64](x, 0, 0); return err },
		"Set":      func() error { return Set[int64](x, 1, 0, 0) },
		"Data":     func() error { _, err := Data[int64](x); return err },
		"Fill":     func() error { return Fill[int64](x, 1) },
		"Clone":    func() error { _, err := x.Clone(); return err },
		"Reshape":  func() error { _, err := turned.Reshape(6); return err },
		"CopyFrom": func() error { return host.CopyFrom(x) },
		"Equal":    func() error { _, err := Equal(host, x); return err },
		"AllClose": func() error { _, err := AllClose(x, host, 0, 0); return err },
	} {
		require.ErrorAs(t, call(), new(*DeviceError), name)
	}
}

func TestEqual(t *testing.T) {
	nan := math.NaN()
	other := math.Float64frombits(math.Float64bits(nan) ^ 1)
	make1 := func(v ...float64) *Tensor {
		x, err := FromSlice(v, len(v))
		require.NoError(t, err)
		return x
	}
	negative := math.Copysign(0, -1)
	for _, c := range []struct {
		a, b        *Tensor
		equal, near bool
	}{
		{make1(1, 2), make1(1, 2), true, true},
		{make1(1, 2), make1(1, 2+1e-9), false, true},
		{make1(1, 2), make1(1, 2.1), false, false},
		{make1(0), make1(negative), false, true},
		{make1(nan), make1(nan), true, false},
		{make1(nan), make1(other), false, false},
		{make1(math.Inf(1)), make1(math.Inf(1)), true, true},
		{make1(math.Inf(1)), make1(math.Inf(-1)), false, false},
		{make1(1), make1(math.Inf(1)), false, false},
		{make1(math.Inf(1)), make1(1), false, false},
		{make1(1, 2), make1(1), false, false},
		{make1(1), Scalar(1.0), false, false},
		{make1(), make1(), true, true},
		{Scalar(float32(1)), Scalar(1.0), false, false},
	} {
		equal, err := Equal(c.a, c.b)
		require.NoError(t, err)
		require.Equal(t, c.equal, equal)
		near, err := AllClose(c.a, c.b, 1e-6, 1e-9)
		require.NoError(t, err)
		require.Equal(t, c.near, near)
	}
}

func TestAllCloseNumbers(t *testing.T) {
	near := func(a, b *Tensor) bool {
		ok, err := AllClose(a, b, 0, 1)
		require.NoError(t, err)
		return ok
	}
	require.True(t, near(Scalar[int8](-128), Scalar[int8](-127)))
	require.False(t, near(Scalar[int8](-128), Scalar[int8](-126)))
	require.True(t, near(Scalar[int16](300), Scalar[int16](301)))
	require.False(t, near(Scalar[int16](300), Scalar[int16](302)))
	require.True(t, near(Scalar[int32](-70000), Scalar[int32](-70001)))
	require.False(t, near(Scalar[int32](-70000), Scalar[int32](-70002)))
	require.True(t, near(Scalar[uint8](254), Scalar[uint8](255)))
	require.False(t, near(Scalar[uint8](0), Scalar[uint8](255)))
	require.True(t, near(Scalar(ToFloat16(3)), Scalar(ToFloat16(3.5))))
	require.False(t, near(Scalar(ToFloat16(3)), Scalar(ToFloat16(4.5))))
	require.True(t, near(Scalar(ToBFloat16(3)), Scalar(ToBFloat16(3.5))))
	require.False(t, near(Scalar(ToBFloat16(3)), Scalar(ToBFloat16(4.5))))
	require.True(t, near(Scalar[complex64](1+1i), Scalar[complex64](1+1.9i)))
	require.False(t, near(Scalar(1+1i), Scalar(2+2i)))
}
