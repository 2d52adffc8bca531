package pipe

import (
	"cmp"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/budget"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
	"github.com/tensorpipe-go/tensorpipe/internal/framed"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
)

// tryNext returns the next message if it has been received, and nil without an error if it has not.
// After the last message it returns the error with which Next ends. It neither blocks nor polls,
// because goroutines read the connections of this dialect.
func (p *compat) tryNext() (*Incoming, error) {
	select {
	case in, ok := <-p.reader.ready:
		if !ok {
			return nil, p.errorFor("next", "", p.endError())
		}
		return &in.Incoming, nil
	default:
		return nil, nil
	}
}

func (p *compat) pending() bool { return len(p.reader.ready) > 0 }

func (p *compat) next(ctx context.Context) (*Incoming, error) {
	select {
	case in, ok := <-p.reader.ready:
		if !ok {
			return nil, p.errorFor("next", "", p.endError())
		}
		return &in.Incoming, nil
	case <-p.closing:
		return nil, p.errorFor("next", "", ErrClosed)
	case <-ctx.Done():
		return nil, p.errorFor("next", "", context.Cause(ctx))
	}
}

// compatReader is the receiving half of a pipe in the compatible dialect. Its goroutine always
// reads from the descriptor connection, except while the read-ahead limits are reached; so an idle
// pipe notices that its peer is gone.
type compatReader struct {
	pipe          *compat
	ready         chan *compatIncoming // the messages for Next; closed after the last one
	readAhead     *budget.Budget       // bytes read before the application asked for them
	desc          wire.Descriptor
	noMoreTensors bool // the peer will send none; belongs to the message whose turn it is

	mu     sync.Mutex
	unread fifo.Queue[*compatIncoming] // messages whose Read or Discard has not started
	state  readProgress

	traffic traffic
}

// readProgress is the state of the reader's goroutine. Two equal states with waiting set, at
// different times, mean that the reader has waited for the peer in between.
type readProgress struct {
	received uint64 // messages
	waiting  bool   // for the peer, and not for the application
	ended    bool   // the peer has ended the connection
}

func (r *compatReader) init(p *compat) {
	r.pipe = p
	r.ready = make(chan *compatIncoming, p.context.limits.MaxReadAheadMessages)
	r.readAhead = budget.New(p.context.limits.ReadAheadBytes)
}

// run is the loop that reads descriptors and payloads until the descriptor connection ends or the
// pipe fails, and then closes r.ready. After an orderly end by the peer it waits until all writes
// of this end are complete, and then ends the writing halves of the descriptor, reply and channel
// connections. If the pipe fails first it returns without doing so. It does not wait for endRecvs,
// which it starts on another goroutine of the pipe.
//
// The writing halves must not end earlier: the connections are then ended in both directions, and
// messages that the peer sent before it closed can be lost. At a peer that closed first, the
// tensors that it sent are complete when this end answers.
func (r *compatReader) run() {
	last, err := r.receiveAll()
	r.finish(err)
	close(r.ready)
	if !r.progress().ended {
		return
	}
	p := r.pipe
	p.running.Go(func() { r.endRecvs(last) })
	select {
	case <-p.sender.idle():
		p.closeMessageWrites()
		for _, c := range p.channelConns {
			c.CloseWrite()
		}
	case <-p.down:
	}
}

// endRecvs waits until last is closed, and then calls EndRecv of all channels that implement
// channel.Compatible. last is closed when memory was supplied for the last message, after which no
// tensor is received. If the pipe fails first, endRecvs returns without these calls. A peer that
// died may have sent a tensor without its message; after EndRecv the channel does not wait for a
// Recv of that tensor.
func (r *compatReader) endRecvs(last <-chan struct{}) {
	select {
	case <-last:
	case <-r.pipe.down:
		return
	}
	for _, ch := range r.pipe.channels {
		if ch.compatible != nil {
			ch.compatible.EndRecv()
		}
	}
}

// receiveAll receives messages until the descriptor connection ends, a message is invalid, or the
// pipe fails, and returns the error, which is never nil. It also returns a Go channel that is
// closed when memory was supplied for the last complete message, or at once if there was none.
func (r *compatReader) receiveAll() (last <-chan struct{}, _ error) {
	turn := make(chan struct{})
	close(turn)
	for {
		in, err := r.receive(turn)
		if err == nil {
			err = r.enqueue(in)
		}
		if err == nil && len(in.desc.Payloads) > 0 {
			if err = midMessage(r.readPayloads(in)); err != nil {
				err = r.pipe.errorFor("read", r.pipe.desc.name, classify(err))
			}
			in.endBody(err)
		}
		if err != nil {
			return turn, err
		}
		turn = in.started
	}
}

// Decoding a descriptor of many empty parts takes many times its bytes, but at most mostParts
// more.
const (
	descriptorGrowth = 20
	mostParts        = (receivedPayloadSize + receivedTensorSize) << 16
)

// receive waits for the next descriptor, decodes and checks it, and returns its message, whose
// payloads are not read yet. It charges the memory of the frame and of the descriptor to the
// message. turn is closed when memory was supplied for the message before; the new message keeps
// turn. The error matches ErrProtocol if the descriptor is invalid or too large, and ErrLimit if
// the peer is evicted; otherwise it is that of the connection.
func (r *compatReader) receive(turn chan struct{}) (*compatIncoming, error) {
	p := r.pipe
	r.setWaiting(true)
	size, err := p.desc.NextFrame()
	r.setWaiting(false)
	if err != nil {
		return nil, err
	}
	if limit := p.context.limits.DescriptorBytes; size > int64(limit) {
		return nil, protocolError("%w", limitError("descriptor", uint64(size), uint64(limit)))
	}
	in := &compatIncoming{reader: r, turn: turn, started: make(chan struct{}), memory: p.newCharge()}
	frame, err := readBody(p.desc, nil, int(size), &in.memory)
	if err != nil {
		return nil, err
	}
	if err := in.memory.grow(len(frame) + min(descriptorGrowth*len(frame), mostParts)); err != nil {
		return nil, err
	}
	if err := wire.DecodeDescriptor(frame, p.context.limits.wire(), &r.desc); err != nil {
		return nil, protocolError("descriptor: %w", err)
	}
	in.Incoming.pipe, in.of = p.Pipe, in
	err = in.setDescriptor(&r.desc)
	r.desc.DropMetadata()
	if max(cap(r.desc.Payloads), cap(r.desc.Tensors)) > keptParts {
		r.desc = wire.Descriptor{}
	}
	if err != nil {
		return nil, err
	}
	in.readAhead = len(frame) + 64*len(in.desc.Payloads) + 128*len(in.desc.Tensors)
	in.memory.shrink(len(frame) + receivedPayloadSize*len(in.desc.Payloads) + receivedTensorSize*len(in.desc.Tensors))
	return in, nil
}

// enqueue waits until the read-ahead limits allow one more message, numbers the message, and passes
// it to a receiver from NextCh or queues it for Next. If the limits also allow the bytes of its
// payloads, enqueue sets in.payloadsAhead, so that readPayloads reads them before the application
// asks for them. It returns the pipe's cause if the pipe fails, and an error that matches ErrLimit
// if the peer is evicted.
func (r *compatReader) enqueue(in *compatIncoming) error {
	p := r.pipe
	if !r.readAhead.Acquire(context.Background(), p.down, in.readAhead) {
		return p.Err()
	}
	n := 0
	for _, d := range in.desc.Payloads {
		n = addSizes(n, d.Length)
	}
	if len(in.desc.Payloads) > 0 && n <= r.readAhead.Size() && r.readAhead.TryAcquire(n) {
		in.readAhead += n
		in.payloadsAhead = make([][]byte, len(in.desc.Payloads))
		if err := in.memory.grow(in.memory.bytes + n); err != nil {
			return err
		}
	}
	r.mu.Lock()
	r.unread.Push(in)
	in.number = r.state.received
	r.state.received++
	r.mu.Unlock()
	if len(r.ready) == 0 && p.sendNext(&in.Incoming) {
		return nil
	}
	select {
	case r.ready <- in:
		return nil
	case <-p.down:
		in.endBody(p.Err())
		return p.Err()
	}
}

// readPayloads reads the payload frames of one message. If in.payloadsAhead is set, it reads them
// at once into memory that it allocates. Otherwise it waits until Read or Discard has begun to
// receive the message, and reads them into in.dst, or drops them if in.dst is nil. The error is
// that of the connection or the pipe, or matches ErrProtocol if a frame does not have the announced
// length.
func (r *compatReader) readPayloads(in *compatIncoming) error {
	p := r.pipe
	if in.payloadsAhead == nil {
		select {
		case <-in.started:
		case <-p.down:
			return p.Err()
		}
	}
	for k, d := range in.desc.Payloads {
		size, err := p.desc.NextFrame()
		if err == nil && size != int64(d.Length) {
			err = protocolError("frame of %d bytes where the descriptor announced %d", size, d.Length)
		}
		switch {
		case err != nil:
		case in.payloadsAhead != nil:
			in.payloadsAhead[k] = make([]byte, d.Length)
			err = p.desc.ReadBody(in.payloadsAhead[k])
		case in.dst != nil:
			err = framed.Fill(p.desc, p.arrived, [][]byte{in.dst[k]})
		default:
			err = discardBody(p.desc, d.Length)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// finish handles err, with which the descriptor connection has ended. If err matches io.EOF, the
// peer has ended the connection in an orderly way: finish makes writes that have not started fail,
// and leaves the pipe up, so that received messages can still be read. Any other error fails the
// pipe, and so does an end without the close frame that a peer of this library sends: the peer was
// lost. If err means that the peer is gone, finish first waits up to closeFrameTimeout for that
// frame and the reason in it. It reports a lost peer to Events.PeerLost.
//
// A C++ peer sends no close frame. Its orderly end counts as the loss of the peer if messages of
// this end have failed because the peer is gone, or are still incomplete after closeFrameTimeout.
func (r *compatReader) finish(err error) {
	p := r.pipe
	orderly := errors.Is(err, io.EOF)
	end := classify(err)
	if orderly && !p.control.exists() {
		idle := p.sender.idle()
		ctx, cancel := context.WithTimeout(context.Background(), closeFrameTimeout)
		closedBefore(ctx, idle, p.down)
		cancel()
		if !isClosed(idle) && !isClosed(p.down) {
			end = classify(io.ErrUnexpectedEOF)
		}
		if cause := p.Err(); errors.Is(cause, ErrPeerLost) {
			end = cause // writes may not have returned it yet
		} else {
			end = cmp.Or(p.writer.lossError(), end)
		}
	}
	end = p.errorFor("next", p.desc.name, p.control.explainEnd(end))
	p.reportLost(end)
	if !orderly || p.control.exists() && errors.Is(end, ErrPeerLost) {
		p.fail(end)
		return
	}
	p.mu.Lock()
	p.end = end
	p.mu.Unlock()
	r.mu.Lock()
	r.state.ended = true
	r.mu.Unlock()
	p.writer.stopStarting(p.errorFor("write", p.desc.name, end))
	p.noteEnd(p.desc.name)
}

// setWaiting records whether the reader's goroutine waits for the peer to send a descriptor.
func (r *compatReader) setWaiting(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state.waiting = on
}

func (r *compatReader) progress() readProgress {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}

// drain discards received messages while the pipe is closing, so that the peer's writes succeed and
// no unread bytes reset the connections. It blocks until the reader's goroutine has received the
// last message, the pipe has failed, or a message cannot be discarded, which fails the pipe.
func (p *compat) drain() {
	r := &p.reader
	for r.drainUnread() {
		select {
		case _, ok := <-r.ready:
			if !ok {
				r.drainUnread()
				return
			}
		case <-r.pipe.down:
			return
		}
	}
}

// drainUnread discards, in order, the messages that have been received and whose reading has not
// started. It returns true when none is left. If a call of Read or Discard has claimed a message
// but not supplied memory yet, drainUnread waits for that call. If a message cannot be discarded,
// drainUnread fails the pipe and returns false.
func (r *compatReader) drainUnread() bool {
	for {
		r.mu.Lock()
		if r.unread.Len() == 0 {
			r.mu.Unlock()
			return true
		}
		in := r.unread.Front()
		r.mu.Unlock()
		for len(r.ready) > 0 {
			<-r.ready // makes the reader continue if it waits to add this message
		}
		err := in.drop(context.Background())
		switch {
		case err == nil:
		case errors.Is(err, ErrAlreadyRead):
			// A call of Read or Discard has claimed the message: wait until it has supplied
			// memory, or for long enough to see that its context has ended before.
			t := time.NewTimer(10 * time.Millisecond)
			select {
			case <-in.started:
			case <-r.pipe.down:
			case <-t.C:
			}
			t.Stop()
		default:
			r.pipe.fail(err) // the message cannot be discarded, or was cut off
			return false
		}
	}
}
