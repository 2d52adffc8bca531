package pipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/staging"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// compatIncoming implements Incoming in the compatible dialect.
type compatIncoming struct {
	Incoming
	reader    *compatReader
	number    uint64          // of the message, from 0
	turn      <-chan struct{} // closed when the message before has started
	started   chan struct{}   // closed when memory has been supplied
	readAhead int             // bytes of the read-ahead budget
	memory    charge          // the decoded frame, and payloads read ahead
	claimed   atomic.Bool     // by a call of Read or Discard

	payloadsAhead [][]byte      // payloads read ahead, nil if they are read into dst
	dst           [][]byte      // memory for payloads, nil to discard them
	body          chan struct{} // closed when the payloads have been received or failed; nil without payloads
	bodyErr       error

	tensors sync.WaitGroup
	mu      sync.Mutex
	err     error // the first error of a tensor
}

func (in *compatIncoming) read(ctx context.Context, a Allocation) error {
	if !staging.Needed(a.Tensors) {
		return in.countRead(in.receive(ctx, a))
	}
	staged, err := in.stage(a, func(ready device.Event) error {
		err := in.reader.pipe.awaitEvent(ctx, ready, in.reader.pipe.closing)
		if err != nil && in.reader.pipe.isClosing() {
			return ErrClosed
		}
		return err
	})
	if err != nil {
		return in.errorFor(err)
	}
	a.Tensors = staged.Memory
	err = in.countRead(in.receive(ctx, a))
	if fault := staged.End(err == nil); fault != nil {
		err = in.errorFor(fault)
	}
	return err
}

func (in *compatIncoming) discard(ctx context.Context) error { return in.countRead(in.drop(ctx)) }

// countRead returns err unchanged. If err is nil and the pipe has a control connection, countRead
// first records that the application has read or discarded the message, so that this end can
// confirm the message to the peer.
func (in *compatIncoming) countRead(err error) error {
	if p := in.reader.pipe; err == nil && p.control.exists() {
		p.control.noteRead(in.number)
	}
	return err
}

// drop receives the message and throws away its bytes. Unlike discard it does not record the
// message as read. The error is that of receive or of
// discardAllocation.
func (in *compatIncoming) drop(ctx context.Context) error {
	a, err := in.discardAllocation()
	if err != nil {
		return in.errorFor(err)
	}
	return in.receive(ctx, a)
}

// isInline reports whether all payloads and tensors of the message are empty. Only metadata is
// carried within the message in this dialect.
func (in *compatIncoming) isInline() bool { return in.desc.Bytes() == 0 }

func (in *compatIncoming) release() {} // it is not reused

// receive waits until memory was supplied for the message before, receives this message into the
// buffers of a, and returns when all parts have been received or have failed. It uses the buffers
// of a only until it returns.
//
// If ctx has ended, or ctx or the pipe ends while receive waits for the message before, receive
// returns the cause and receives nothing, and the message can be claimed again. If ctx ends later,
// before all parts have been received, the pipe fails, and the error matches ErrCancelled unless
// another failure came first. If another call has claimed the message, the error matches
// ErrAlreadyRead. If a part fails, receive returns its error or the cause of the pipe's failure.
func (in *compatIncoming) receive(ctx context.Context, a Allocation) error {
	if ctx.Err() != nil {
		return in.errorFor(context.Cause(ctx))
	}
	if !in.claimed.CompareAndSwap(false, true) {
		return in.errorFor(ErrAlreadyRead)
	}
	if !isClosed(in.turn) { // if it is, received messages can be read even after the pipe has failed
		var err error
		select {
		case <-in.turn:
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-in.reader.pipe.down:
			err = in.reader.pipe.Err()
		}
		if err != nil {
			in.claimed.Store(false)
			return in.errorFor(err)
		}
	}
	stop := func() bool { return true }
	if ctx.Done() != nil {
		stop = context.AfterFunc(ctx, func() { in.reader.pipe.fail(ErrCancelled) })
	}
	in.start(a)
	err := in.wait()
	in.memory.release()
	if !stop() && errors.Is(err, ErrCancelled) {
		err = fmt.Errorf("%w: %w", ErrCancelled, context.Cause(ctx))
	}
	if err != nil {
		return in.errorFor(err)
	}
	in.reader.traffic.add(in.desc.Bytes())
	return nil
}

// start begins to receive the message into the buffers of a. It sends the reply with the target
// devices, gives the tensor buffers to their channels, takes the message off the list of unread
// messages, releases its read-ahead budget, and closes in.started. The next message starts after
// that, so replies and transfers are in the order of messages. If the reply cannot be sent, the
// pipe fails; but if this end is closing, start only skips the tensors of this and all later
// messages.
func (in *compatIncoming) start(a Allocation) {
	r := in.reader
	in.dst = a.Payloads
	if err := in.reply(a); err != nil && r.pipe.isClosing() {
		r.noMoreTensors = true // without replies the peer sends neither these tensors nor later ones
	} else if err != nil {
		err = classify(err)
		if r.progress().ended && errors.Is(err, ErrClosed) {
			err = r.pipe.endError() // the peer has closed, and therefore this end has ended its replies
		}
		r.pipe.fail(r.pipe.errorFor("read", r.pipe.reply.name, err))
	}
	for k, b := range a.Tensors {
		t := &in.desc.Tensors[k]
		if t.Length == 0 || r.noMoreTensors {
			continue
		}
		ch := r.pipe.channelFor(b.Device(), t.SourceDevice, t.Length)
		in.tensors.Add(1)
		done := func(err error) {
			if err == nil {
				ch.received.add(t.Length)
			} else {
				failed := r.pipe.failTransfer("read", ch, err)
				in.mu.Lock()
				in.err = cmp.Or(in.err, failed)
				in.mu.Unlock()
			}
			in.tensors.Done()
		}
		id := ch.nextRecv
		ch.nextRecv++
		if ch.compatible != nil && b.Len() == 0 {
			ch.compatible.Discard(id, t.Length, done) // the memory is from discardAllocation
		} else {
			ch.channel.Recv(id, b, done)
		}
	}
	r.mu.Lock()
	r.unread.Pop()
	r.mu.Unlock()
	r.readAhead.Release(in.readAhead)
	close(in.started)
}

// reply sends the peer the devices of those buffers of a that belong to tensors whose target the
// sender left to the receiver. If there are no such tensors it sends nothing and returns nil. The
// error is ErrClosed after replyConn.endWrites, and otherwise that of the reply connection.
func (in *compatIncoming) reply(a Allocation) error {
	var reply wire.DescriptorReply
	for k, t := range in.desc.Tensors {
		if t.TargetDevice.IsZero() {
			reply.TargetDevices = append(reply.TargetDevices, a.Tensors[k].Device())
		}
	}
	if len(reply.TargetDevices) == 0 {
		return nil
	}
	return in.reader.pipe.reply.write(reply.Append(nil))
}

// wait blocks until all parts of the message have been received or have failed. If all were
// received, it copies payloads that were read ahead to in.dst and returns nil. Otherwise it returns
// the cause of the pipe's failure if the pipe has failed, and the first error of a part if not.
func (in *compatIncoming) wait() error {
	in.tensors.Wait()
	err := in.err
	if in.body != nil {
		<-in.body
		err = cmp.Or(err, in.bodyErr)
	}
	if err != nil {
		return cmp.Or(in.reader.pipe.Err(), classify(err)) // err may only be a consequence of the pipe's failure
	}
	for k, p := range in.dst {
		if in.payloadsAhead != nil {
			copy(p, in.payloadsAhead[k])
		}
	}
	return nil
}

// endBody wakes the call of wait that waits for the message's payloads. A nil err means that the
// payloads have been received; otherwise err is why they will not be. For a message without
// payloads endBody does nothing. endBody is called at most once.
func (in *compatIncoming) endBody(err error) {
	if in.body != nil {
		in.bodyErr = err
		close(in.body)
	}
}

// setDescriptor fills in the message's descriptor from d, which the peer has sent, and makes
// in.body if there are payloads. It returns an error that matches ErrProtocol if d exceeds a size
// limit or has a tensor that no channel can deliver. The metadata is not copied: the message keeps
// references to the slices in d.
func (in *compatIncoming) setDescriptor(d *wire.Descriptor) error {
	limits := &in.reader.pipe.context.limits
	in.desc.Metadata = d.Metadata
	if n := len(d.Payloads); n > 0 {
		in.desc.Payloads = make([]PayloadDescriptor, n)
		in.body = make(chan struct{})
	}
	for k, p := range d.Payloads {
		if p.Length > uint64(limits.PayloadBytes) {
			return protocolError("%w", limitError("payload", p.Length, uint64(limits.PayloadBytes)))
		}
		in.desc.Payloads[k] = PayloadDescriptor{Length: int(p.Length), Metadata: p.Metadata}
	}
	if n := len(d.Tensors); n > 0 {
		in.desc.Tensors = make([]TensorDescriptor, n)
	}
	for k, t := range d.Tensors {
		if t.Length > uint64(limits.TensorBytes) {
			return protocolError("%w", limitError("tensor", t.Length, uint64(limits.TensorBytes)))
		}
		in.desc.Tensors[k] = TensorDescriptor{
			Length:       int(t.Length),
			SourceDevice: t.SourceDevice,
			TargetDevice: t.TargetDevice,
			Metadata:     t.Metadata,
		}
		if err := in.reader.pipe.checkArrival(&in.desc.Tensors[k]); err != nil {
			return protocolError("tensor %d: %w", k, err)
		}
	}
	if n := in.desc.Bytes(); n > limits.MessageBytes {
		return protocolError("%w", limitError("message", uint64(n), uint64(limits.MessageBytes)))
	}
	return nil
}

// discardBufferSize is the largest buffer, in bytes, into which a payload or the host tensors
// of a channel are discarded.
const discardBufferSize = 512 << 10

// discardAllocation returns memory into which the message is received in order to be discarded. The
// peer may have announced more than this machine has. Therefore a tensor of a channel that implements
// channel.Compatible gets no memory, and start makes the channel drop it. Another host tensor gets a
// small buffer, repeated as often as needed, which the tensors of one channel may share; that is safe
// because such a channel receives one tensor after the other. Payloads get no memory.
//
// If the sender left the target device to the receiver, the target is the CPU if a channel can
// bring the tensor there, and otherwise another local device. The error matches ErrAllocation: a
// tensor is for another device, and its channel does not implement channel.Compatible.
func (in *compatIncoming) discardAllocation() (Allocation, error) {
	a := Allocation{Tensors: make([]device.Buffer, len(in.desc.Tensors))}
	pieces := map[*pipeChannel][]byte{}
	for k, t := range in.desc.Tensors {
		d := t.TargetDevice
		if d.IsZero() { // the sender left it open
			d = in.reader.pipe.recvDevices[t.SourceDevice]
			if in.reader.pipe.channelsByPair[devicePair{device.CPU(), t.SourceDevice}] != nil {
				d = device.CPU()
			}
		}
		l := in.reader.pipe.channelFor(d, t.SourceDevice, t.Length)
		switch {
		case l.compatible != nil || t.Length == 0:
			a.Tensors[k] = device.On(d, noMemory{}, nil)
		case d == device.CPU():
			pieces[l] = slices.Grow(pieces[l], min(t.Length, discardBufferSize))
			a.Tensors[k] = repeatedBuffer(pieces[l], t.Length)
		default:
			return a, allocationError("tensor %d: channel %s cannot discard tensors for %s", k, l.name, d)
		}
	}
	return a, nil
}

// noMemory is the memory of a tensor that a channel drops.
type noMemory struct{}

func (noMemory) Len() int { return 0 }

// repeatedBuffer returns a host buffer of n bytes that consists of the memory of piece, up to its
// capacity, as many times as needed. It allocates no memory for the bytes: bytes that are received
// into the buffer overwrite each other. piece must have a capacity greater than 0, unless n is 0.
func repeatedBuffer(piece []byte, n int) device.Buffer {
	if n <= cap(piece) {
		return device.Bytes(piece[:n])
	}
	segments := make([][]byte, 0, n/cap(piece)+1)
	for ; n > 0; n -= len(piece) {
		piece = piece[:min(n, cap(piece))]
		segments = append(segments, piece)
	}
	return device.Host(segments...)
}

// discardBody reads and drops the body of the frame whose header conn.NextFrame has just returned.
// size is the length of the body in bytes. The error is that of conn.
func discardBody(conn transport.Conn, size int) error {
	piece := make([]byte, min(size, discardBufferSize))
	for size > 0 {
		piece = piece[:min(size, len(piece))]
		if err := conn.ReadBody(piece); err != nil {
			return err
		}
		size -= len(piece)
	}
	return nil
}
