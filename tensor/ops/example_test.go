package ops_test

import (
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

func ExampleEngine() {
	e, ctx := &ops.Engine{}, context.Background()
	x, err := tensor.FromSlice([]float32{1, 2, 3, 4, 5, 6}, 2, 3)
	if err != nil {
		fmt.Println(err)
		return
	}
	row, err := e.Sum(ctx, x, []int{0}, false, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := e.SubInPlace(ctx, x, row, ops.Float(0.5)); err != nil {
		fmt.Println(err)
		return
	}
	data, err := tensor.Data[float32](x)
	fmt.Println(data, err)
	_, err = e.Add(ctx, x, tensor.Scalar(true), ops.Float(0.5))
	fmt.Println(err)
	_, err = e.MatMul(ctx, x, x)
	fmt.Println(err)
	// Output:
	// [-1.5 -1.5 -1.5 1.5 1.5 1.5] <nil>
	// <nil>
	// mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)
}
