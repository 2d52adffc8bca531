package safetensors

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// model returns n F32 tensors of size bytes each, of zeros, named like the weights of a model's
// layers.
func model(n, size int) map[string]*tensor.Tensor {
	tensors := map[string]*tensor.Tensor{}
	for i := range n {
		tensors[fmt.Sprintf("layer.%d.weight", i)] = must(tensor.Zeros(tensor.F32, size/4))
	}
	return tensors
}

func BenchmarkRead(b *testing.B) {
	for _, c := range []struct {
		name    string
		n, size int
	}{{"1000 of 1 KiB", 1000, 1 << 10}, {"8 of 8 MiB", 8, 8 << 20}} {
		var file bytes.Buffer
		must(0, Encode(&file, model(c.n, c.size), nil))
		path := filepath.Join(b.TempDir(), "model.safetensors")
		must(0, WriteFile(path, model(c.n, c.size), nil))
		pool := tensor.NewPool(tensor.PoolOptions{})
		for _, way := range []struct {
			name string
			read func() (map[string]*tensor.Tensor, map[string]string, error)
		}{
			{"mapped", func() (map[string]*tensor.Tensor, map[string]string, error) {
				return ReadFile(path, Options{Allocator: pool})
			}},
			{"stream", func() (map[string]*tensor.Tensor, map[string]string, error) {
				return Decode(bytes.NewReader(file.Bytes()), Options{Allocator: pool})
			}},
		} {
			b.Run(c.name+"/"+way.name, func(b *testing.B) {
				b.SetBytes(int64(c.n * c.size))
				b.ReportAllocs()
				for b.Loop() {
					tensors, _, err := way.read()
					if err != nil {
						b.Fatal(err)
					}
					for _, x := range tensors {
						x.Release()
					}
				}
			})
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	tensors := model(8, 8<<20)
	b.SetBytes(64 << 20)
	for b.Loop() {
		var size counter
		if err := Encode(&size, tensors, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// counter is a writer that counts bytes.
type counter int

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}
