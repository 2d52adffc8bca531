package tensor

import (
	"fmt"
	"testing"
)

func BenchmarkCopy(b *testing.B) {
	const edge = 2048
	for _, dtype := range []DType{U8, F32, F64} {
		src, _ := Zeros(dtype, edge, edge)
		dst, _ := Zeros(dtype, edge, edge)
		turned, _ := src.Transpose(0, 1)
		columns, _ := src.Slice(1, 0, edge, 2)
		half, _ := Zeros(dtype, edge, edge/2)
		block, _ := src.Narrow(1, 0, edge/2)
		for _, c := range []struct {
			name     string
			dst, src *Tensor
		}{
			{"contiguous", dst, src}, {"rows", half, block}, {"transposed", dst, turned}, {"every second", half, columns},
		} {
			b.Run(fmt.Sprintf("%v/%s", dtype, c.name), func(b *testing.B) {
				b.SetBytes(int64(c.dst.ByteSize()))
				b.ReportAllocs()
				for b.Loop() {
					if err := c.dst.CopyFrom(c.src); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkSmallCopy(b *testing.B) {
	src, _ := Zeros(F32, 4, 4)
	dst, _ := Zeros(F32, 4, 4)
	turned, _ := src.Transpose(0, 1)
	b.ReportAllocs()
	for b.Loop() {
		if err := dst.CopyFrom(turned); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAllocAndFill measures allocating memory, touching each page of it and releasing it, with
// memory that a pool reuses, new memory of a pool, and the Go heap. Touching new memory causes page
// faults.
func BenchmarkAllocAndFill(b *testing.B) {
	for _, size := range []int{1 << 20, 16 << 20, 64 << 20} {
		pool := NewPool(PoolOptions{})
		fresh := NewPool(PoolOptions{IdleLimit: 1})
		for _, c := range []struct {
			name string
			from Allocator
		}{{"recycled", pool}, {"fresh", fresh}, {"heap", Heap{}}} {
			b.Run(fmt.Sprintf("%dMiB/%s", size>>20, c.name), func(b *testing.B) {
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					s, err := c.from.Alloc(size)
					if err != nil {
						b.Fatal(err)
					}
					for i := 0; i < size; i += 4096 {
						s.host[i] = 1
					}
					s.Release()
				}
			})
		}
	}
}

func BenchmarkPoolAlloc(b *testing.B) {
	pool := NewPool(PoolOptions{})
	b.ReportAllocs()
	for b.Loop() {
		s, err := pool.Alloc(4 << 20)
		if err != nil {
			b.Fatal(err)
		}
		s.Release()
	}
}

func BenchmarkToFloat16(b *testing.B) {
	values := make([]float32, 4096)
	for i := range values {
		values[i] = float32(i-2048) / 64
	}
	out := make([]Float16, len(values))
	b.SetBytes(int64(4 * len(values)))
	for b.Loop() {
		for i, v := range values {
			out[i] = ToFloat16(v)
		}
	}
}
