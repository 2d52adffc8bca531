package main

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// parseValue reads an argument of a call from the command line: a tensor as nested
// lists of numbers, perhaps with its element type in front, as in f32:[[1,2],[3,4]];
// a list of integers that is no tensor, as in ints:[2,2]; a number; true, false or
// none; a text as a JSON string; and anything else is a text as it stands.
func parseValue(text string) (any, error) {
	kind, rest, typed := strings.Cut(text, ":")
	switch {
	case strings.HasPrefix(text, "["):
		return parseTensor(text, 0)
	case strings.HasPrefix(text, `"`):
		return parseText(text)
	case typed && kind == "ints":
		return parseInts(rest)
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

func parseText(quoted string) (text string, err error) {
	if err := json.Unmarshal([]byte(quoted), &text); err != nil {
		return "", fmt.Errorf("%s is no text in double quotes: %w", quoted, err)
	}
	return text, nil
}

func parseInts(text string) ([]int64, error) {
	var list []int64
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, fmt.Errorf("%q is no list of integers: %w", text, err)
	}
	return list, nil
}

// parseTensor reads nested lists. Without a dtype it is I64 if all numbers are
// integers, and F32 otherwise.
func parseTensor(text string, dtype tensor.DType) (*tensor.Tensor, error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var tree any
	if err := d.Decode(&tree); err != nil || d.More() {
		return nil, fmt.Errorf("%q is no tensor: want nested lists of numbers, as in [[1,2],[3,4]]", text)
	}
	var numbers []json.Number
	shape, err := flatten(tree, &numbers)
	if err != nil {
		return nil, fmt.Errorf("%q is no tensor: %w", text, err)
	}
	if dtype == 0 {
		dtype = tensor.F32
		if allInts(numbers) {
			dtype = tensor.I64
		}
	}
	return fill(dtype, shape, numbers)
}

// flatten appends the numbers of a tree and returns its shape.
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
				return nil, fmt.Errorf("its lists are not of one length")
			}
			inner = shape
		}
		return append([]int{len(v)}, inner...), nil
	}
	return nil, fmt.Errorf("%v is no number", tree)
}

func allInts(numbers []json.Number) bool {
	for _, n := range numbers {
		if _, err := n.Int64(); err != nil {
			return false
		}
	}
	return true
}

// fill makes a tensor of numbers.
func fill(dtype tensor.DType, shape []int, numbers []json.Number) (*tensor.Tensor, error) {
	switch dtype {
	case tensor.F32:
		return filled(shape, numbers, func(x float64) (float32, bool) { return float32(x), !math.IsInf(float64(float32(x)), 0) })
	case tensor.F64:
		return filled(shape, numbers, func(x float64) (float64, bool) { return x, true })
	case tensor.I32:
		return filled(shape, numbers, func(x float64) (int32, bool) { return int32(x), x == math.Trunc(x) && math.Abs(x) <= math.MaxInt32 })
	case tensor.U8:
		return filled(shape, numbers, func(x float64) (uint8, bool) { return uint8(x), x == math.Trunc(x) && x >= 0 && x <= math.MaxUint8 })
	case tensor.I64:
		return filledInts(shape, numbers)
	}
	return nil, fmt.Errorf("no tensors of %v on the command line: want f32, f64, i64, i32 or u8", dtype)
}

func filled[T tensor.Element](shape []int, numbers []json.Number, convert func(float64) (T, bool)) (*tensor.Tensor, error) {
	data := make([]T, len(numbers))
	for i, n := range numbers {
		x, err := n.Float64()
		v, ok := convert(x)
		if err != nil || !ok {
			return nil, fmt.Errorf("%v is no %v", n, tensor.DTypeOf[T]())
		}
		data[i] = v
	}
	return tensor.FromSlice(data, shape...)
}

func filledInts(shape []int, numbers []json.Number) (*tensor.Tensor, error) {
	data := make([]int64, len(numbers))
	for i, n := range numbers {
		v, err := n.Int64()
		if err != nil {
			return nil, fmt.Errorf("%v is no i64", n)
		}
		data[i] = v
	}
	return tensor.FromSlice(data, shape...)
}
