package safetensors_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/safetensors"
)

func ExampleOpen() {
	f, err := safetensors.Open("testdata/digits_split_mlp_init.safetensors", safetensors.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	bias, err := f.Tensor("stage1.bias")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(f.Infos()), "tensors;", bias)
	// Output: 4 tensors; f32[10]
}

func ExampleReader() {
	var stream bytes.Buffer
	tensors := map[string]*tensor.Tensor{"step": tensor.Scalar[int64](7), "rate": tensor.Scalar(float32(0.5))}
	if err := safetensors.Encode(&stream, tensors, map[string]string{"by": "me"}); err != nil {
		log.Fatal(err)
	}

	r, err := safetensors.NewReader(&stream, safetensors.Options{ByteLimit: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Metadata())
	for {
		info, x, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(info.Name, x)
	}
	// Output:
	// map[by:me]
	// step i64[]
	// rate f32[]
}
