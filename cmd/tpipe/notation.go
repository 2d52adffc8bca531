package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// maxPrinted is how many elements of a tensor are printed.
const maxPrinted = 1000

// format prints a result of a call in the form that parseValue reads, where it has
// one. A text is printed as it is, without quotes.
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

// appendTensor writes the elements from a dimension on.
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
