package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
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

// serve prints its address and serves until stdin ends.
func serve(network, address string) error {
	l, err := net.Listen(network, address)
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

// request reads a request into memory of the pool. After success the caller puts the request back with
// pool.Put.
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

// lastByte replies with the size of the argument and its last byte.
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

// usage replies with the CPU time of this process in nanoseconds.
func usage(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
	used, err := cpuTime()
	if err != nil {
		return nil, err
	}
	return &message{binary.LittleEndian.AppendUint64(nil, uint64(used))}, nil
}
