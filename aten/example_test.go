package aten_test

import (
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/aten"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

func ExampleTable_Call() {
	x, err := tensor.FromSlice([]float32{1, 2, 3, 4}, 2, 2)
	if err != nil {
		fmt.Println(err)
		return
	}
	table, ctx := aten.Default(), context.Background()

	out, err := table.Call(ctx, "aten::add", []aten.Value{x, 10}, map[string]aten.Value{"alpha": 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	sum, err := tensor.Data[float32](out[0].(*tensor.Tensor))
	fmt.Println(sum, err)

	_, err = table.Call(ctx, "aten::mm", []aten.Value{x, "x"}, nil)
	fmt.Println(err)
	// Output:
	// [21 22 23 24] <nil>
	// aten::mm: argument "mat2" (position 1) is str; want Tensor
}
