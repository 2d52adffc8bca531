package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Full names of the methods.
const (
	methodAdd   = "/bench.Peer/Add"
	methodBytes = "/bench.Peer/Bytes"
	methodUsage = "/bench.Peer/Usage"
)

// workers is the number of goroutines that serve calls and are reused. A new goroutine per call would have
// to grow its stack each time, which takes a quarter of the server's CPU time.
const workers = 64

// server has the memory of requests, one pool per method, so that small requests do not use the memory of
// large ones.
type server struct{ adds, bytes sync.Pool }

// serve listens at address, for the kind of connection over, which is a key of addresses. It prints
// the address of the listener to stdout, and serves calls until stdin ends. The error is that of
// listening, of printing or of gRPC.
func serve(over, address string) error {
	l, err := listen(over, address)
	if err != nil {
		return err
	}
	s := grpc.NewServer(
		grpc.NumStreamWorkers(workers),
		grpc.ForceServerCodecV2(codec{}),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.InitialWindowSize(maxMessage), grpc.InitialConnWindowSize(maxMessage),
	)
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "bench.Peer",
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			{MethodName: "Add", Handler: add},
			{MethodName: "Bytes", Handler: lastByte},
			{MethodName: "Usage", Handler: usage},
		},
		Streams: []grpc.StreamDesc{streamReceive, streamSend, streamEcho},
	}, &server{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the parent
		s.Stop()
	}()
	if _, err := fmt.Println(l.Addr()); err != nil {
		return errors.Join(err, l.Close())
	}
	return s.Serve(l)
}

// request takes a message from the pool, or a new one, reads a request into it by calling read, and
// returns it. After success the caller puts the message back with pool.Put. The error is that of
// read.
func request(pool *sync.Pool, read func(any) error) (*message, error) {
	m, ok := pool.Get().(*message)
	if !ok {
		m = new(message)
	}
	return m, read(m)
}

func add(srv any, _ context.Context, read func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	pool := &srv.(*server).adds
	in, err := request(pool, read)
	if err != nil {
		return nil, err
	}
	defer pool.Put(in)
	out, err := sum(in.bytes)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return &message{out}, nil
}

// lastByte is the handler of the method Bytes. It replies with the size of the argument in 8 bytes
// and its last byte, or with the code InvalidArgument if the argument is empty.
func lastByte(srv any, _ context.Context, read func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	pool := &srv.(*server).bytes
	in, err := request(pool, read)
	if err != nil {
		return nil, err
	}
	defer pool.Put(in)
	n := len(in.bytes)
	if n == 0 {
		return nil, status.Error(codes.InvalidArgument, "no bytes")
	}
	return &message{append(binary.LittleEndian.AppendUint64(nil, uint64(n)), in.bytes[n-1])}, nil
}

// usage is the handler of the method Usage. It replies with the CPU time of this process in
// nanoseconds, in 8 bytes, or with an error if the system does not report it.
func usage(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
	used, err := cpuTime()
	if err != nil {
		return nil, err
	}
	return &message{binary.LittleEndian.AppendUint64(nil, uint64(used))}, nil
}
