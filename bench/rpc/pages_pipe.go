package rpc

import (
	"context"
	"encoding/binary"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// pageForm is the form of a message with pages.
type pageForm byte

const (
	asTensors  pageForm = iota // one tensor for each page
	asSegments                 // one tensor, with a segment for each page
)

// buffers returns the pages of pool with the given numbers, in the form f. The result shares the
// memory of pool.
func (f pageForm) buffers(pool []byte, numbers []int) []device.Buffer {
	pages := make([][]byte, len(numbers))
	buffers := make([]device.Buffer, len(numbers))
	for i, n := range numbers {
		pages[i] = pool[n*pageBytes : (n+1)*pageBytes]
		buffers[i] = device.Bytes(pages[i])
	}
	if f == asSegments {
		return []device.Buffer{device.Host(pages...)}
	}
	return buffers
}

// acceptPipes serves each pipe on a goroutine, until the listener is closed.
func (s *pageServer) acceptPipes() {
	for {
		p, err := s.pipes.Accept(context.Background())
		if err != nil {
			return
		}
		s.work.Go(func() { p.Abort(s.answerPipe(context.Background(), p)) })
	}
}

// answerPipe replies to each message of p, which fetchPipe sends, with a message of the pages that
// it requests, until p ends. The error is that of p.
func (s *pageServer) answerPipe(ctx context.Context, p *pipe.Pipe) error {
	for {
		in, err := p.Next(ctx)
		if err != nil {
			return err
		}
		request := in.Descriptor().Metadata
		var numbers []int
		for i := 1; i+4 <= len(request); i += 4 {
			numbers = append(numbers, int(binary.LittleEndian.Uint32(request[i:]))%poolPages)
		}
		buffers := pageForm(request[0]).buffers(s.bytes, numbers)
		m := &pipe.Message{Tensors: make([]pipe.Tensor, 0, len(buffers))}
		for _, b := range buffers {
			m.Tensors = append(m.Tensors, pipe.Tensor{Buffer: b, TargetDevice: device.CPU()})
		}
		if err := in.Read(ctx, pipe.Allocation{}); err != nil {
			return err
		}
		in.Release()
		if err := p.Write(ctx, m); err != nil {
			return err
		}
	}
}

// fetchPipe requests pages over p, a pipe to a pageServer, in one message of the form f, and reads
// them into pages of pool. from lists the numbers of the pages to request, and to lists, in the
// same order, the numbers of the pages into which they are read. The error is that of p.
func fetchPipe(ctx context.Context, p *pipe.Pipe, f pageForm, pool []byte, from, to []int) error {
	request := []byte{byte(f)}
	for _, n := range from {
		request = binary.LittleEndian.AppendUint32(request, uint32(n))
	}
	if err := p.Write(ctx, &pipe.Message{Metadata: request}); err != nil {
		return err
	}
	in, err := p.Next(ctx)
	if err != nil {
		return err
	}
	if err := in.Read(ctx, pipe.Allocation{Tensors: f.buffers(pool, to)}); err != nil {
		return err
	}
	in.Release()
	return nil
}
