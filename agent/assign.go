package agent

import (
	"fmt"
	"math"
	"reflect"
)

// assign sets dst to a value that came as one of any type. Numbers may change their
// type as long as they stay what they are.
func assign(dst reflect.Value, value any) error {
	src := reflect.ValueOf(value)
	if !src.IsValid() {
		return assignNil(dst)
	}
	if src.Type().AssignableTo(dst.Type()) {
		dst.Set(src)
		return nil
	}
	if assignNumber(dst, src) {
		return nil
	}
	switch kind := dst.Kind(); {
	case isNumber(kind) && isNumber(src.Kind()):
		return fmt.Errorf("%v %v, which is no %v", src.Type(), value, dst.Type())
	case kind == src.Kind() && (kind == reflect.Bool || kind == reflect.String):
		dst.Set(src.Convert(dst.Type()))
		return nil
	}
	return fmt.Errorf("%v, want %v", src.Type(), dst.Type())
}

func assignNil(dst reflect.Value) error {
	switch dst.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Slice, reflect.Map:
		dst.SetZero()
		return nil
	}
	return fmt.Errorf("nil, want %v", dst.Type())
}

func isNumber(k reflect.Kind) bool {
	return k >= reflect.Int && k <= reflect.Complex128 && k != reflect.Uintptr
}

// assignNumber reports whether both are numbers, and that of src fits dst. A float
// may lose digits but an integer does not.
func assignNumber(dst, src reflect.Value) bool {
	switch {
	case dst.CanInt() && src.CanInt():
		return setInt(dst, src.Int())
	case dst.CanInt() && src.CanUint():
		return src.Uint() <= math.MaxInt64 && setInt(dst, int64(src.Uint()))
	case dst.CanUint() && src.CanInt():
		return src.Int() >= 0 && setUint(dst, uint64(src.Int()))
	case dst.CanUint() && src.CanUint():
		return setUint(dst, src.Uint())
	case dst.CanFloat():
		return assignFloat(dst, src)
	case dst.CanComplex() && src.CanComplex():
		return !dst.OverflowComplex(src.Complex()) && set(dst, src)
	}
	return false
}

func assignFloat(dst, src reflect.Value) bool {
	switch {
	case src.CanFloat():
		return !dst.OverflowFloat(src.Float()) && set(dst, src)
	case src.CanInt():
		return exactly(dst, src) && dst.Convert(src.Type()).Int() == src.Int()
	case src.CanUint():
		return exactly(dst, src) && dst.Convert(src.Type()).Uint() == src.Uint()
	}
	return false
}

// exactly sets a float to an integer that is so small that every one has a float.
func exactly(dst, src reflect.Value) bool {
	digits := 53
	if dst.Kind() == reflect.Float32 {
		digits = 24
	}
	set(dst, src)
	return math.Abs(dst.Float()) <= float64(uint64(1)<<digits)
}

func set(dst, src reflect.Value) bool {
	dst.Set(src.Convert(dst.Type()))
	return true
}

func setInt(dst reflect.Value, n int64) bool {
	if dst.OverflowInt(n) {
		return false
	}
	dst.SetInt(n)
	return true
}

func setUint(dst reflect.Value, n uint64) bool {
	if dst.Kind() == reflect.Uintptr || dst.OverflowUint(n) {
		return false
	}
	dst.SetUint(n)
	return true
}
