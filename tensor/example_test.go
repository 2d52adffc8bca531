package tensor_test

import (
	"fmt"
	"log"
	"runtime"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

func Example() {
	x, err := tensor.FromSlice([]float32{1, 2, 3, 4, 5, 6}, 2, 3)
	if err != nil {
		log.Fatal(err)
	}
	turned, err := x.Transpose(0, 1) // a view: nothing is copied
	if err != nil {
		log.Fatal(err)
	}
	packed, err := turned.Contiguous() // a pipe sends contiguous tensors
	if err != nil {
		log.Fatal(err)
	}
	values, err := tensor.Data[float32](packed)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(x, turned, values)
	// Output: f32[2,3] f32[3,2] [1 4 2 5 3 6]
}

func ExamplePool() {
	pool := tensor.NewPool(tensor.PoolOptions{Limit: 1 << 30})
	x, err := tensor.Alloc(pool, tensor.F32, 1024, 1024)
	if err != nil {
		log.Fatal(err)
	}
	values, err := tensor.MutableData[float32](x)
	if err != nil {
		log.Fatal(err)
	}
	for i := range values { // reused memory is not zero
		values[i] = 1
	}
	runtime.KeepAlive(x) // the slice alone does not keep pooled memory alive
	fmt.Println(pool.Stats().InUse>>20, "MiB in use")

	x.Release() // otherwise the collector does it some time later
	fmt.Println(pool.Stats().Idle>>20, "MiB ready for the next tensor")
	// Output:
	// 4 MiB in use
	// 4 MiB ready for the next tensor
}

func ExampleSparse() {
	indices, err := tensor.FromSlice([]int64{3, 1, 3}, 1, 3)
	if err != nil {
		log.Fatal(err)
	}
	values, err := tensor.FromSlice([]float64{0.5, 2, 0.25}, 3)
	if err != nil {
		log.Fatal(err)
	}
	s, err := tensor.NewSparse(indices, values, 5)
	if err != nil {
		log.Fatal(err)
	}
	dense, err := s.ToDense()
	if err != nil {
		log.Fatal(err)
	}
	sum, err := tensor.Data[float64](dense)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(s.Coalesced(), sum)
	// Output: false [0 2 0 0.75 0]
}
