package main

import (
	"fmt"

	"google.golang.org/grpc/mem"
)

// message is a request or an answer.
type message struct{ bytes []byte }

// codec takes messages as the bytes that they are.
type codec struct{}

// Name is part of the content type of every call.
func (codec) Name() string { return "raw" }

// Marshal lends the memory of the message to gRPC.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*message)
	if !ok {
		return nil, fmt.Errorf("a message of type %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(m.bytes)}, nil
}

// Unmarshal copies what came, in pieces, into one piece of memory: that which the
// message has, where it is large enough.
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
