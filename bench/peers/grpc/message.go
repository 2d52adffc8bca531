package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"google.golang.org/grpc/mem"
)

// message is a request or a reply.
type message struct{ bytes []byte }

// codec encodes messages as their bytes.
type codec struct{}

// Name returns "raw", which gRPC makes part of the content type.
func (codec) Name() string { return "raw" }

// Marshal returns the memory of the message v itself, without a copy. So the message must not
// change until gRPC has sent it. Marshal fails if v is not a *message.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*message)
	if !ok {
		return nil, fmt.Errorf("a message of type %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(m.bytes)}, nil
}

// Unmarshal copies data, the received pieces, into the memory of the message v, which it replaces
// if it is too small. It fails if v is not a *message.
func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*message)
	if !ok {
		return fmt.Errorf("a message of type %T", v)
	}
	n := data.Len()
	if cap(m.bytes) < n {
		m.bytes = make([]byte, n)
	}
	m.bytes = m.bytes[:n]
	data.CopyTo(m.bytes)
	return nil
}

// A tensor of float32 is encoded as one byte for its rank, 8 bytes for each dimension, and its elements, all
// little endian.

const (
	dimBytes     = 8
	elementBytes = 4
)

var (
	errShort    = errors.New("a tensor ends early")
	errTrailing = errors.New("bytes after the last tensor")
	errShapes   = errors.New("tensors of different shapes")
)

// tensor refers to the shape and the elements of a tensor within a message.
type tensor struct{ shape, data []byte }

// appendTensor appends the encoding of a tensor with that shape and these elements to p and returns
// the extended slice.
func appendTensor(p []byte, shape []int, data []float32) []byte {
	p = append(p, byte(len(shape)))
	for _, dim := range shape {
		p = binary.LittleEndian.AppendUint64(p, uint64(dim))
	}
	for _, x := range data {
		p = appendElement(p, x)
	}
	return p
}

func appendElement(p []byte, x float32) []byte {
	return binary.LittleEndian.AppendUint32(p, math.Float32bits(x))
}

func element(p []byte) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(p))
}

// parseTensor returns the tensor at the beginning of p and the bytes after it. Both share the
// memory of p. The error is errShort if p ends before the tensor does.
func parseTensor(p []byte) (t tensor, remaining []byte, err error) {
	if len(p) == 0 || len(p)-1 < int(p[0])*dimBytes {
		return t, nil, errShort
	}
	header := 1 + int(p[0])*dimBytes
	t.shape, p = p[1:header], p[header:]
	size := uint64(elementBytes)
	for dims := t.shape; len(dims) > 0; dims = dims[dimBytes:] {
		dim := binary.LittleEndian.Uint64(dims)
		if dim > 0 && size > uint64(len(p))/dim {
			return t, nil, errShort
		}
		size *= dim
	}
	if size > uint64(len(p)) {
		return t, nil, errShort
	}
	t.data = p[:size]
	return t, p[size:], nil
}

// sum adds the two tensors that request encodes and returns the encoding of the sum, in new memory.
// The error is errShort, errTrailing or errShapes, and the result is then nil.
func sum(request []byte) ([]byte, error) {
	a, remaining, err := parseTensor(request)
	if err != nil {
		return nil, err
	}
	b, remaining, err := parseTensor(remaining)
	switch {
	case err != nil:
		return nil, err
	case len(remaining) > 0:
		return nil, errTrailing
	case !bytes.Equal(a.shape, b.shape):
		return nil, errShapes
	}
	out := make([]byte, 0, 1+len(a.shape)+len(a.data))
	out = append(out, byte(len(a.shape)/dimBytes))
	out = append(out, a.shape...)
	for i := 0; i < len(a.data); i += elementBytes {
		out = appendElement(out, element(a.data[i:])+element(b.data[i:]))
	}
	return out, nil
}
