package tensor

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDTypes(t *testing.T) {
	cases := []struct {
		dtype DType
		name  string
		size  int
	}{
		{Bool, "bool", 1}, {U8, "u8", 1}, {I8, "i8", 1}, {I16, "i16", 2}, {I32, "i32", 4}, {I64, "i64", 8},
		{F16, "f16", 2}, {BF16, "bf16", 2}, {F32, "f32", 4}, {F64, "f64", 8}, {C64, "c64", 8}, {C128, "c128", 16},
	}
	require.Len(t, dtypes, len(cases)+1, "a dtype without a case here")
	for _, c := range cases {
		require.True(t, c.dtype.Valid())
		require.Equal(t, c.name, c.dtype.String())
		require.Equal(t, c.size, c.dtype.Size())
		parsed, err := ParseDType(c.name)
		require.NoError(t, err)
		require.Equal(t, c.dtype, parsed)
	}
}

func TestInvalidDType(t *testing.T) {
	for _, d := range []DType{0, C128 + 1, 255} {
		require.False(t, d.Valid())
		require.Zero(t, d.Size())
		require.Equal(t, "none", d.String())
	}
	for _, name := range []string{"", "none", "f33", "F32", "f32 "} {
		_, err := ParseDType(name)
		var typed *DTypeError
		require.ErrorAs(t, err, &typed)
		require.Equal(t, name, typed.Name)
	}
}

func TestDTypeOf(t *testing.T) {
	require.Equal(t, Bool, DTypeOf[bool]())
	require.Equal(t, U8, DTypeOf[uint8]())
	require.Equal(t, I8, DTypeOf[int8]())
	require.Equal(t, I16, DTypeOf[int16]())
	require.Equal(t, I32, DTypeOf[int32]())
	require.Equal(t, I64, DTypeOf[int64]())
	require.Equal(t, F16, DTypeOf[Float16]())
	require.Equal(t, BF16, DTypeOf[BFloat16]())
	require.Equal(t, F32, DTypeOf[float32]())
	require.Equal(t, F64, DTypeOf[float64]())
	require.Equal(t, C64, DTypeOf[complex64]())
	require.Equal(t, C128, DTypeOf[complex128]())
}
