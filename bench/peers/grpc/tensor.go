package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
)

// A tensor of float32 travels as a byte for its rank, 8 bytes for each dimension,
// and its elements, all little-endian.

const (
	dimBytes     = 8
	elementBytes = 4
)

var (
	errShort  = errors.New("a tensor ends early")
	errRest   = errors.New("bytes behind the last tensor")
	errShapes = errors.New("tensors of different shapes")
)

// tensor looks at one within a message.
type tensor struct{ shape, data []byte }

// appendTensor appends a tensor to p.
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

// cut returns the tensor that p begins with, and what follows it.
func cut(p []byte) (t tensor, rest []byte, err error) {
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

// sum adds the two tensors of a request and returns the answer.
func sum(request []byte) ([]byte, error) {
	a, rest, err := cut(request)
	if err != nil {
		return nil, err
	}
	b, rest, err := cut(rest)
	switch {
	case err != nil:
		return nil, err
	case len(rest) > 0:
		return nil, errRest
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
