package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"google.golang.org/grpc"
)

// call makes one call and checks the answer. It has memory of its own, and is not
// for two goroutines at once.
type call func(ctx context.Context) error

// newCall returns a call of that job.
func newCall(conn *grpc.ClientConn, j job) call {
	if j.kind == kindAdd {
		return newAdd(conn)
	}
	return newBytes(conn, j.param)
}

func newAdd(conn *grpc.ClientConn) call {
	shape := []int{2, 2}
	a, b := []float32{1, 2, 3, 4}, []float32{10, 20, 30, 40}
	want := appendTensor(nil, shape, []float32{11, 22, 33, 44})
	var in, out message
	return func(ctx context.Context) error {
		in.bytes = appendTensor(appendTensor(in.bytes[:0], shape, a), shape, b)
		if err := conn.Invoke(ctx, methodAdd, &in, &out); err != nil {
			return err
		}
		if !bytes.Equal(out.bytes, want) {
			return fmt.Errorf("the sum is %x", out.bytes)
		}
		return nil
	}
}

// newBytes sends the same bytes but for the last one, which numbers the call.
func newBytes(conn *grpc.ClientConn, size int) call {
	in, out := message{make([]byte, size)}, message{}
	for i := range in.bytes {
		in.bytes[i] = byte(i)
	}
	last := &in.bytes[size-1]
	return func(ctx context.Context) error {
		*last++
		if err := conn.Invoke(ctx, methodBytes, &in, &out); err != nil {
			return err
		}
		if len(out.bytes) != 9 || binary.LittleEndian.Uint64(out.bytes) != uint64(size) || out.bytes[8] != *last {
			return fmt.Errorf("of %d bytes that end with %d arrived %x", size, *last, out.bytes)
		}
		return nil
	}
}

// used is the processor time of both processes so far.
func used(ctx context.Context, conn *grpc.ClientConn) (time.Duration, error) {
	var out message
	if err := conn.Invoke(ctx, methodUsage, &message{}, &out); err != nil {
		return 0, err
	}
	if len(out.bytes) != 8 {
		return 0, fmt.Errorf("a processor time of %d bytes", len(out.bytes))
	}
	own, err := cpuTime()
	return own + time.Duration(binary.LittleEndian.Uint64(out.bytes)), err
}
