package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// parseValue returns the value that text, an argument of a call, stands for:
//
//	[[1,2],[3,4]], f32:[[1,2],[3,4]]   a *tensor.Tensor, with its element type before the colon
//	ints:[2,2]                         []int64
//	2, 2.5                             int64, float64
//	true, false                        bool
//	none                               nil
//	"2"                                string, in JSON syntax
//	anything else                      the text itself, as a string
//
// The error gives the reason why text is invalid.
func parseValue(text string) (any, error) {
	kind, rest, typed := strings.Cut(text, ":")
	switch {
	case strings.HasPrefix(text, "["):
		return parseTensor(text, 0)
	case strings.HasPrefix(text, `"`):
		var unquoted string
		if err := json.Unmarshal([]byte(text), &unquoted); err != nil {
			return nil, fmt.Errorf("%s is not a string in double quotes: %w", text, err)
		}
		return unquoted, nil
	case typed && kind == "ints":
		var list []int64
		if err := json.Unmarshal([]byte(rest), &list); err != nil {
			return nil, fmt.Errorf("%q is not a list of integers: %w", rest, err)
		}
		return list, nil
	case typed && strings.HasPrefix(rest, "["):
		dtype, err := tensor.ParseDType(kind)
		if err != nil {
			return nil, err
		}
		return parseTensor(rest, dtype)
	}
	switch text {
	case "true", "false":
		return text == "true", nil
	case "none":
		return nil, nil
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, nil
	}
	if x, err := strconv.ParseFloat(text, 64); err == nil {
		return x, nil
	}
	return text, nil
}

// parseTensor returns a new tensor with the numbers in text, which are nested JSON lists. dtype is
// its element type; 0 stands for I64 if all numbers are integers of 64 bits, and for F32 otherwise.
// The error gives the reason why text is invalid or cannot have that type.
func parseTensor(text string, dtype tensor.DType) (*tensor.Tensor, error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var tree any
	err := d.Decode(&tree)
	if _, end := d.Token(); err != nil || end != io.EOF {
		return nil, fmt.Errorf("%q is not a tensor: want nested lists of numbers, as in [[1,2],[3,4]]", text)
	}
	var numbers []json.Number
	shape, err := flatten(tree, &numbers)
	if err != nil {
		return nil, fmt.Errorf("%q is not a tensor: %w", text, err)
	}
	if dtype == 0 {
		dtype = tensor.I64
		fraction := func(n json.Number) bool { _, err := n.Int64(); return err != nil }
		if slices.ContainsFunc(numbers, fraction) {
			dtype = tensor.F32
		}
	}
	return fill(dtype, shape, numbers)
}

// flatten appends the numbers in tree to *numbers in row-major order, and returns the shape of
// tree. tree is a JSON value decoded with UseNumber: a number, whose shape is nil, or nested lists
// of numbers. It fails if lists of one level differ in shape, or if an element is not a number.
func flatten(tree any, numbers *[]json.Number) ([]int, error) {
	switch v := tree.(type) {
	case json.Number:
		*numbers = append(*numbers, v)
		return nil, nil
	case []any:
		var inner []int
		for i, item := range v {
			shape, err := flatten(item, numbers)
			if err != nil {
				return nil, err
			}
			if i > 0 && fmt.Sprint(shape) != fmt.Sprint(inner) {
				return nil, fmt.Errorf("its lists differ in length")
			}
			inner = shape
		}
		return append([]int{len(v)}, inner...), nil
	}
	return nil, fmt.Errorf("%v is not a number", tree)
}

// fill returns a new tensor with that dtype and shape and with numbers as its elements, in
// row-major order. It fails if a number is not a value of dtype, if the command line does not
// support dtype, or if tensor.FromSlice fails, for example because the shape has another number of
// elements.
func fill(dtype tensor.DType, shape []int, numbers []json.Number) (*tensor.Tensor, error) {
	switch dtype {
	case tensor.F32:
		return filled(shape, numbers, func(x float64) (float32, bool) { return float32(x), !math.IsInf(float64(float32(x)), 0) })
	case tensor.F64:
		return filled(shape, numbers, func(x float64) (float64, bool) { return x, true })
	case tensor.I32:
		return filled(shape, numbers, func(x float64) (int32, bool) {
			return int32(x), x == math.Trunc(x) && x >= math.MinInt32 && x <= math.MaxInt32
		})
	case tensor.U8:
		return filled(shape, numbers, func(x float64) (uint8, bool) { return uint8(x), x == math.Trunc(x) && x >= 0 && x <= math.MaxUint8 })
	case tensor.I64:
		return filledInts(shape, numbers)
	}
	return nil, fmt.Errorf("tensors of %v are not supported on the command line: want f32, f64, i64, i32 or u8", dtype)
}

// filled returns a new tensor with that shape and element type T. Its elements are the numbers,
// each converted by convert. It fails if convert returns false for a number, if a float64 cannot
// hold a number, or if tensor.FromSlice fails.
func filled[T tensor.Element](shape []int, numbers []json.Number, convert func(float64) (T, bool)) (*tensor.Tensor, error) {
	data := make([]T, len(numbers))
	for i, n := range numbers {
		x, err := n.Float64()
		v, ok := convert(x)
		if err != nil || !ok {
			return nil, fmt.Errorf("%v is not a value of %v", n, tensor.DTypeOf[T]())
		}
		data[i] = v
	}
	return tensor.FromSlice(data, shape...)
}

// filledInts returns a new tensor with that shape and the element type I64. Its elements are the
// numbers. It fails if a number is not an integer of 64 bits, or if tensor.FromSlice fails. Unlike
// filled, it does not convert the numbers to float64, which would round them.
func filledInts(shape []int, numbers []json.Number) (*tensor.Tensor, error) {
	data := make([]int64, len(numbers))
	for i, n := range numbers {
		v, err := n.Int64()
		if err != nil {
			return nil, fmt.Errorf("%v is not a value of i64", n)
		}
		data[i] = v
	}
	return tensor.FromSlice(data, shape...)
}

// maxPrinted is the largest number of elements of a tensor that is printed in full.
const maxPrinted = 1000

// format returns v, a result of a call, as text in the syntax of parseValue. Strings are returned
// without quotes, several tensors with a space between them, and large tensors as a description
// without elements. Values of other types are formatted as by fmt.Sprint.
func format(v any) string {
	switch v := v.(type) {
	case nil:
		return "none"
	case *tensor.Tensor:
		return formatTensor(v)
	case []*tensor.Tensor:
		parts := make([]string, len(v))
		for i, t := range v {
			parts[i] = formatTensor(t)
		}
		return strings.Join(parts, " ")
	case []int64:
		return "ints:" + strings.ReplaceAll(fmt.Sprint(v), " ", ",")
	case string:
		return v
	}
	return fmt.Sprint(v)
}

// formatTensor returns t as text in the syntax of parseValue, such as "f32:[[1,2],[3,4]]". It
// returns a description of t without its elements if these are more than maxPrinted, or of a type
// that is not printed. For a nil t it returns "none".
func formatTensor(t *tensor.Tensor) string {
	if t == nil {
		return "none"
	}
	if n, err := tensor.NumElements(t.Shape()); err != nil || n > maxPrinted {
		return t.String()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%v:", t.DType())
	index := make([]int, t.Rank())
	if err := appendTensor(&b, t, index, 0); err != nil {
		return fmt.Sprintf("%v: %v", t, err)
	}
	return b.String()
}

// appendTensor writes a part of t to b as nested lists: the elements whose first dim indices are
// the first dim values of index. It overwrites the other values of index, which must have one for
// each dimension of t. The error means that elements of t's type are not printed.
func appendTensor(b *strings.Builder, t *tensor.Tensor, index []int, dim int) error {
	if dim == t.Rank() {
		text, err := formatElement(t, index)
		b.WriteString(text)
		return err
	}
	b.WriteByte('[')
	for i := range t.Shape()[dim] {
		if i > 0 {
			b.WriteByte(',')
		}
		index[dim] = i
		if err := appendTensor(b, t, index, dim+1); err != nil {
			return err
		}
	}
	b.WriteByte(']')
	return nil
}

// formatElement returns the element of t at index as text. It fails if elements of t's type are not
// printed, which are all but F32, F64, I64, I32, U8 and Bool.
func formatElement(t *tensor.Tensor, index []int) (string, error) {
	switch t.DType() {
	case tensor.F32:
		x, err := tensor.At[float32](t, index...)
		return strconv.FormatFloat(float64(x), 'g', -1, 32), err
	case tensor.F64:
		x, err := tensor.At[float64](t, index...)
		return strconv.FormatFloat(x, 'g', -1, 64), err
	case tensor.I64:
		x, err := tensor.At[int64](t, index...)
		return strconv.FormatInt(x, 10), err
	case tensor.I32:
		x, err := tensor.At[int32](t, index...)
		return fmt.Sprint(x), err
	case tensor.U8:
		x, err := tensor.At[uint8](t, index...)
		return fmt.Sprint(x), err
	case tensor.Bool:
		x, err := tensor.At[bool](t, index...)
		return fmt.Sprint(x), err
	}
	return "", fmt.Errorf("elements of %v are not printed", t.DType())
}
