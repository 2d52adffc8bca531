package codec_test

import (
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

type gradients struct {
	Step   int
	Layers map[string]*tensor.Tensor
	Cause  error
}

// A program encodes a value with tensors, sends the bytes and the memory of the tensors to another
// process, and that process decodes the value. Here both are in this process.
func Example() {
	registry := codec.NewRegistry()
	errDiverged := errors.New("loss is not a number")
	if err := registry.RegisterError("diverged", errDiverged); err != nil {
		fmt.Println(err)
	}
	weights, _ := tensor.FromSlice([]float32{1, 2, 3, 4, 5, 6}, 3, 2)
	row, _ := weights.Select(0, 1)
	sent := gradients{
		Step:   7,
		Layers: map[string]*tensor.Tensor{"dense": weights, "row": row},
		Cause:  fmt.Errorf("step 7: %w", errDiverged),
	}

	e := codec.NewEncoder(registry, codec.Limits{})
	if err := e.Encode(&sent); err != nil {
		fmt.Println(err)
	}
	data, tensors, err := e.Finish()
	fmt.Println(len(tensors), "storage is sent", err)

	d := codec.NewDecoder(registry, codec.Limits{})
	if err := d.Reset(data); err != nil {
		fmt.Println(err)
	}
	var storages []*tensor.Storage
	for i, part := range d.Parts() {
		s, _ := tensor.Heap{}.Alloc(part.Bytes)
		buf, _ := s.Buffer()
		_ = device.CopyHost(buf, tensors[i].Buffer)
		storages = append(storages, s)
	}
	if err := d.Supply(storages); err != nil {
		fmt.Println(err)
	}
	var got gradients
	fmt.Println(d.Decode(&got), d.Finish())
	fmt.Println(got.Step, got.Layers["dense"], got.Layers["row"], got.Cause, errors.Is(got.Cause, errDiverged))
	fmt.Println(got.Layers["dense"].Storage() == got.Layers["row"].Storage())

	type withLock struct{ Ready chan bool }
	e.Reset(nil)
	fmt.Println(e.Encode(&map[string]withLock{}))
	// Output:
	// 1 storage is sent <nil>
	// <nil> <nil>
	// 7 f32[3,2] f32[2] step 7: loss is not a number true
	// true
	// codec: map[string]codec_test.withLock[].Ready: cannot be encoded: chan bool
}
