package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// streamLength is the number of messages of each stream that a job of receive or send opens.
const streamLength = 10_000

// The streams of the server. Both ends use the descriptions.
var (
	streamReceive = grpc.StreamDesc{StreamName: "Receive", Handler: sendAll, ServerStreams: true}
	streamSend    = grpc.StreamDesc{StreamName: "Send", Handler: receiveAll, ClientStreams: true}
	streamEcho    = grpc.StreamDesc{StreamName: "Echo", Handler: echo, ServerStreams: true, ClientStreams: true}
)

func open(ctx context.Context, conn *grpc.ClientConn, d *grpc.StreamDesc) (grpc.ClientStream, error) {
	return conn.NewStream(ctx, d, "/bench.Peer/"+d.StreamName)
}

// newReceive returns a call that opens a stream and receives streamLength messages of size bytes.
func newReceive(conn *grpc.ClientConn, size int) call {
	in, out := message{binary.LittleEndian.AppendUint64(nil, uint64(size))}, message{}
	return func(ctx context.Context) error {
		s, err := open(ctx, conn, &streamReceive)
		if err == nil {
			err = s.SendMsg(&in)
		}
		if err == nil {
			err = s.CloseSend()
		}
		for n := 0; err == nil; n++ {
			switch err = s.RecvMsg(&out); {
			case err == io.EOF && n == streamLength:
				return nil
			case err == nil && len(out.bytes) != size:
				err = fmt.Errorf("message %d has %d bytes", n, len(out.bytes))
			}
		}
		return err
	}
}

// newSend returns a call that opens a stream, sends streamLength messages of size bytes, and waits
// until the server has counted them.
func newSend(conn *grpc.ClientConn, size int) call {
	in, out := message{make([]byte, size)}, message{}
	return func(ctx context.Context) error {
		s, err := open(ctx, conn, &streamSend)
		for n := 0; err == nil && n < streamLength; n++ {
			err = s.SendMsg(&in)
		}
		if err == nil {
			err = s.CloseSend()
		}
		if err == nil {
			err = s.RecvMsg(&out)
		}
		if err == nil && (len(out.bytes) != 8 || binary.LittleEndian.Uint64(out.bytes) != uint64(size)*streamLength) {
			err = fmt.Errorf("of %d messages of %d bytes %x arrived", streamLength, size, out.bytes)
		}
		return err
	}
}

// newEcho opens a stream, which ends with ctx, and returns a call that sends a message of size bytes
// on it and receives the same message. The error is that of opening the stream.
func newEcho(ctx context.Context, conn *grpc.ClientConn, size int) (call, error) {
	s, err := open(ctx, conn, &streamEcho)
	in, out := message{make([]byte, size)}, message{}
	return func(context.Context) error {
		if err := s.SendMsg(&in); err != nil {
			return err
		}
		if err := s.RecvMsg(&out); err != nil {
			return err
		}
		if len(out.bytes) != size {
			return fmt.Errorf("of %d bytes %d returned", size, len(out.bytes))
		}
		return nil
	}, err
}

// sendAll is the handler of the stream Receive. The request is the size of the messages, in 8 bytes.
func sendAll(_ any, s grpc.ServerStream) error {
	var in message
	if err := s.RecvMsg(&in); err != nil {
		return err
	}
	if len(in.bytes) != 8 || binary.LittleEndian.Uint64(in.bytes) > maxMessage {
		return status.Error(codes.InvalidArgument, "no size")
	}
	out := message{make([]byte, binary.LittleEndian.Uint64(in.bytes))}
	for range streamLength {
		if err := s.SendMsg(&out); err != nil {
			return err
		}
	}
	return nil
}

// receiveAll is the handler of the stream Send. It replies with the number of bytes of all messages,
// in 8 bytes.
func receiveAll(_ any, s grpc.ServerStream) error {
	var in message
	total := 0
	for {
		err := s.RecvMsg(&in)
		if errors.Is(err, io.EOF) {
			return s.SendMsg(&message{binary.LittleEndian.AppendUint64(nil, uint64(total))})
		}
		if err != nil {
			return err
		}
		total += len(in.bytes)
	}
}

// echo is the handler of the stream Echo. It sends each message back. The caller waits for it before
// it sends the next one, so one memory is enough.
func echo(_ any, s grpc.ServerStream) error {
	var m message
	for {
		if err := s.RecvMsg(&m); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := s.SendMsg(&m); err != nil {
			return err
		}
	}
}
