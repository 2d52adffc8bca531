package tensor

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/x448/float16"
)

func TestFloat16KeepsEveryPattern(t *testing.T) {
	for p := range 1 << 16 {
		h := Float16(p)
		f := h.Float32()
		if want := float16.Frombits(uint16(p)).Float32(); math.Float32bits(want) != math.Float32bits(f) {
			t.Fatalf("Float16(%#04x).Float32() = %x, want %x", p, math.Float32bits(f), math.Float32bits(want))
		}
		want := h
		if p&0x7c00 == 0x7c00 && p&0x3ff != 0 {
			want |= 0x200 // NaNs come out quiet
		}
		if got := ToFloat16(f); got != want {
			t.Fatalf("ToFloat16(Float16(%#04x).Float32()) = %#04x, want %#04x", p, uint16(got), uint16(want))
		}
	}
}

// checkFloat16 requires that ToFloat16 and an independent implementation return the same for the
// float32 with the given bits.
func checkFloat16(t *testing.T, bits uint32) {
	f := math.Float32frombits(bits)
	if got, want := uint16(ToFloat16(f)), float16.Fromfloat32(f).Bits(); got != want {
		t.Fatalf("ToFloat16(%g, bits %#08x) = %#04x, want %#04x", f, bits, got, want)
	}
}

func TestToFloat16AroundEveryBoundary(t *testing.T) {
	for p := range 1 << 16 {
		at := math.Float32bits(Float16(p).Float32())
		for _, distance := range []uint32{0, 0x7ff, 0xfff, 0x1000, 0x1001, 0x1fff} {
			checkFloat16(t, at+distance)
			checkFloat16(t, at-distance)
		}
	}
	for exponent := range uint32(256) {
		for bit := range 24 {
			for _, low := range []uint32{0, 1<<bit - 1, 1 << bit, 1<<bit + 1} {
				checkFloat16(t, exponent<<23|low&0x7fffff)
				checkFloat16(t, 1<<31|exponent<<23|low&0x7fffff)
			}
		}
	}
}

func TestToFloat16Samples(t *testing.T) {
	const prime = 4099 // about a million samples in every exponent range
	for bits := uint64(0); bits < 1<<32; bits += prime {
		checkFloat16(t, uint32(bits))
	}
}

func TestToFloat16Values(t *testing.T) {
	cases := []struct {
		in   float32
		want Float16
	}{
		{0, 0}, {float32(math.Copysign(0, -1)), 0x8000}, {1, 0x3c00}, {-2, 0xc000},
		{65504, 0x7bff}, {65519.996, 0x7bff}, {65520, 0x7c00}, {-65520, 0xfc00}, {1e30, 0x7c00},
		{float32(math.Inf(1)), 0x7c00}, {float32(math.Inf(-1)), 0xfc00},
		{0x1p-14, 0x0400}, {0x1p-24, 1}, {0x1p-25, 0}, {0x1.000002p-25, 1}, {0x1.8p-24, 2}, {0x1p-149, 0},
		{1 + 0x1p-11, 0x3c00}, {1 + 0x3p-11, 0x3c02},
		{math.Float32frombits(0x7f800001), 0x7e00}, {math.Float32frombits(0xffffffff), 0xffff},
	}
	for _, c := range cases {
		require.Equal(t, c.want, ToFloat16(c.in), "%g", c.in)
	}
	require.Equal(t, "-1.5", ToFloat16(-1.5).String())
}

func TestBFloat16KeepsEveryPattern(t *testing.T) {
	for p := range 1 << 16 {
		b := BFloat16(p)
		f := b.Float32()
		if math.Float32bits(f) != uint32(p)<<16 && f == f {
			t.Fatalf("BFloat16(%#04x).Float32() = %g", p, f)
		}
		want := b
		if f != f {
			want |= 0x40 // NaNs come out quiet
		}
		if got := ToBFloat16(f); got != want {
			t.Fatalf("ToBFloat16(%g) = %#04x, want %#04x", f, uint16(got), uint16(want))
		}
	}
}

// nearestBFloat16 returns the BFloat16 that is nearest to f, ties to even, by comparing distances
// in float64, which is exact. f must not be a NaN or infinite.
func nearestBFloat16(f float32) BFloat16 {
	low := BFloat16(math.Float32bits(f) >> 16)
	below := float64(low.Float32())
	above := float64((low + 1).Float32())
	if math.IsInf(above, 0) {
		above = math.Copysign(0x1p128, above) // where the next number would be
	}
	down, up := math.Abs(float64(f)-below), math.Abs(above-float64(f))
	if down < up || down == up && low&1 == 0 {
		return low
	}
	return low + 1
}

func TestToBFloat16RoundsToNearestEven(t *testing.T) {
	for p := range uint32(1 << 16) {
		for _, low := range []uint32{0, 1, 0x7fff, 0x8000, 0x8001, 0xffff} {
			f := math.Float32frombits(p<<16 | low)
			if f != f {
				got := ToBFloat16(f)
				if g := got.Float32(); g == g || got != BFloat16(p|0x40) {
					t.Fatalf("NaN %#08x became %#04x", p<<16|low, uint16(got))
				}
				continue
			}
			if math.IsInf(float64(f), 0) {
				if got := ToBFloat16(f); got != BFloat16(p) {
					t.Fatalf("%g became %#04x", f, uint16(got))
				}
				continue
			}
			if got, want := ToBFloat16(f), nearestBFloat16(f); got != want {
				t.Fatalf("ToBFloat16(%g) = %#04x, want %#04x", f, uint16(got), uint16(want))
			}
		}
	}
	require.Equal(t, "2.5", ToBFloat16(2.5).String())
}
