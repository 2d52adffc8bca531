package pipe

import (
	"context"
	"time"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/hugepage"
)

// Message is the argument of Write: metadata, payloads in host memory and tensors on any device.
// All of them may be empty.
type Message struct {
	Metadata []byte
	Payloads []Payload
	Tensors  []Tensor

	// Deadline is the time after which the message is useless; zero means never. A Write that
	// begins later fails with context.DeadlineExceeded and sends nothing. In the native dialect
	// the receiver gets the deadline too, and a message whose transfers have not ended by
	// then is aborted.
	Deadline time.Time

	// More announces that other messages follow at once: this one may be sent a moment
	// later, together with them, but does not wait for them. It has no effect in the
	// compatible dialect and through shared memory.
	More bool
}

func (m *Message) checkDeadline() error {
	if !m.Deadline.IsZero() && !time.Now().Before(m.Deadline) {
		return context.DeadlineExceeded
	}
	return nil
}

// Payload is host memory that is sent as part of the message.
type Payload struct {
	Data     []byte
	Metadata []byte

	// Compression requests that Data be compressed.
	Compression Compression
}

// Tensor is a buffer that is sent over the channel between its device and the target device.
type Tensor struct {
	// Buffer holds the bytes to send. They are valid once its stream has done its work.
	Buffer device.Buffer

	// TargetDevice is the device to which the tensor goes. If it is zero the receiver
	// chooses, which costs a round trip in the compatible dialect.
	TargetDevice device.Device

	Metadata []byte

	// Compression requests that the tensor be compressed. It has an effect on a tensor in
	// host memory without a stream, if no channel can bring it to a device but cpu:0.
	Compression Compression
}

// Descriptor describes an incoming message whose parts may not have arrived yet, so that the
// receiver can supply memory for them.
type Descriptor struct {
	Metadata []byte
	Payloads []PayloadDescriptor
	Tensors  []TensorDescriptor

	// Deadline is the message's deadline by the receiver's clock. It does not account for
	// the time that the message took to arrive. It is zero if the message has none, and
	// in the compatible dialect.
	Deadline time.Time
}

// Bytes returns the size of all payloads and tensors together, at most math.MaxInt.
func (d *Descriptor) Bytes() int {
	n := 0
	for _, p := range d.Payloads {
		n = addSizes(n, p.Length)
	}
	for _, t := range d.Tensors {
		n = addSizes(n, t.Length)
	}
	return n
}

// Message returns a new message with the metadata and target devices of d and the payloads and
// tensors of a, so that a program can echo or relay a message after Read. a must have one entry for
// each payload and tensor of d. The message shares the memory of a and all metadata of d. It has no
// deadline and requests no compression.
func (d *Descriptor) Message(a Allocation) *Message {
	m := &Message{
		Metadata: d.Metadata,
		Payloads: make([]Payload, len(d.Payloads)),
		Tensors:  make([]Tensor, len(d.Tensors)),
	}
	for i, p := range d.Payloads {
		m.Payloads[i] = Payload{Data: a.Payloads[i], Metadata: p.Metadata}
	}
	for i, t := range d.Tensors {
		m.Tensors[i] = Tensor{Buffer: a.Tensors[i], TargetDevice: t.TargetDevice, Metadata: t.Metadata}
	}
	return m
}

// PayloadDescriptor describes one payload. Length is in bytes.
type PayloadDescriptor struct {
	Length   int
	Metadata []byte
}

// TensorDescriptor describes one tensor. Length is in bytes. TargetDevice is zero if the receiver
// chooses the device.
type TensorDescriptor struct {
	Length       int
	SourceDevice device.Device
	TargetDevice device.Device
	Metadata     []byte
}

// Allocation is the memory into which a message is read: one slice for each payload and one buffer
// for each tensor. Each has exactly the length in the descriptor. A tensor with a target device
// needs a buffer on that device.
type Allocation struct {
	Payloads [][]byte
	Tensors  []device.Buffer
}

// NewAllocation allocates zeroed host memory for each part that d describes, with the sizes that
// the peer has announced, in all up to Limits.MessageBytes. Read rejects the allocation if a tensor
// of the message cannot go to cpu:0, for example because the sender chose another target device.
func NewAllocation(d *Descriptor) Allocation {
	a := Allocation{
		Payloads: make([][]byte, len(d.Payloads)),
		Tensors:  make([]device.Buffer, len(d.Tensors)),
	}
	for i, p := range d.Payloads {
		a.Payloads[i] = make([]byte, p.Length)
	}
	for i, t := range d.Tensors {
		a.Tensors[i] = device.Bytes(hugepage.Make(t.Length))
	}
	return a
}

// Incoming is a message of the peer whose descriptor has arrived. It must be read or discarded,
// once. In the compatible dialect the messages that follow wait for that. All methods but Release
// may be called from any goroutine.
type Incoming struct {
	pipe *Pipe
	of   receiver
	desc Descriptor
}

// receiver implements an Incoming in one dialect. read, discard, release and isInline have the
// contracts of the methods Read, Discard, Release and Inline of Incoming; Incoming.Read has checked
// the allocation.
type receiver interface {
	read(ctx context.Context, a Allocation) error
	discard(ctx context.Context) error
	release()
	isInline() bool
}

// Descriptor returns the description of the message. The caller must not change it. It is valid
// until Release.
func (in *Incoming) Descriptor() *Descriptor { return &in.desc }

// Read receives the message into the memory of a and returns when all parts have arrived. A part
// whose buffer has a stream is valid once that stream has done the work that Read has enqueued; Read
// does not wait for the stream. For host memory this requires the stream's kind in Options.Kinds and
// bytes of Limits.ContextBytesInFlight for a copy; without them Read waits until the stream has done
// its present work. In the native dialect messages may be read in any order. In the compatible dialect they are read in
// order: Read waits until all earlier messages have been given memory, but not for their bytes.
//
// If a does not fit the message, the error matches ErrAllocation, and the call has no other effect,
// so that Read can be called with other memory. Read can also be called again if ctx has ended
// before the call, or in the compatible dialect ends while Read waits for earlier messages or for a
// stream. Once Read has begun to receive,
// the message cannot be read or discarded again (ErrAlreadyRead); if ctx then ends before all parts
// have arrived, the message is lost and, in the compatible dialect, the pipe fails. If this end is
// closing the pipe, the error matches ErrClosed. The pipe does not use the memory of a after Read
// has returned, apart from work on the streams of its buffers.
func (in *Incoming) Read(ctx context.Context, a Allocation) error {
	if e := in.pipe.events; e != nil && e.MessageRead != nil {
		info := in.beginRead()
		return in.reportRead(info, in.readChecked(ctx, a))
	}
	return in.readChecked(ctx, a)
}

func (in *Incoming) readChecked(ctx context.Context, a Allocation) error {
	if err := in.check(a); err != nil {
		return in.errorFor(err)
	}
	if in.pipe.isClosing() {
		return in.errorFor(ErrClosed)
	}
	return in.of.read(ctx, a)
}

// Discard drops the message without supplying memory for it. In the native dialect it returns at
// once, and the peer is asked not to send the parts that are not inline. In the compatible dialect
// it receives the message and throws away the bytes, in a bounded amount of host memory; it waits for
// earlier messages, and ctx has the effect that it has on Read. If a channel for devices other than
// the CPU cannot discard tensors, the error matches ErrAllocation. If the message was read or discarded before, the error
// matches ErrAlreadyRead; if this end is closing the pipe, it matches ErrClosed.
func (in *Incoming) Discard(ctx context.Context) error {
	if e := in.pipe.events; e != nil && e.MessageRead != nil {
		info := in.beginRead()
		info.Discarded = true
		return in.reportRead(info, in.discardChecked(ctx))
	}
	return in.discardChecked(ctx)
}

func (in *Incoming) discardChecked(ctx context.Context) error {
	if in.pipe.isClosing() {
		return in.errorFor(ErrClosed)
	}
	return in.of.discard(ctx)
}

// Inline reports whether all parts of the message are inline. The bytes of such a message precede
// all later messages on the connection; in the native dialect Read waits for nothing else from the
// peer.
func (in *Incoming) Inline() bool { return in.of.isInline() }

// Release returns the Incoming for reuse. Calling it is optional; in the native dialect, a loop
// that calls it does not allocate for small messages. It has no effect on a message that was not
// read or discarded, and none in the compatible dialect. The caller must not use the Incoming, its
// Descriptor or metadata afterwards. The memory into which Read has received the message stays the
// caller's.
func (in *Incoming) Release() { in.of.release() }

func (in *Incoming) errorFor(err error) error { return in.pipe.errorFor("read", "", err) }

// Write sends m and returns when the memory of m may be reused. By then the bytes of m have been
// copied or passed to the kernel, and those that a channel copies directly have been received. It
// does not mean that the peer has read the message. For tensors on a device with streams it means
// that the work has been enqueued on their stream.
//
// Write blocks while the limits on bytes in flight are exceeded. In the native dialect, parts that
// go from host memory to host memory, of at most 64 KiB each and 1 MiB in all, are inline, in some
// cases larger ones too, see Plan. A message of such parts alone does not wait for the peer: bytes that
// cannot be sent at once are copied. If a tensor that is not inline leaves the target device to the receiver, Write returns
// only after the receiver has called Read or Discard: two ends that send such messages to each
// other must not both wait in Write before they read.
//
// When ctx ends, a message of which no byte has been sent is withdrawn. A message that has been
// sent in part is aborted; in the compatible dialect, which cannot abort a message, the pipe fails.
// In the native dialect a queued message whose parts are all inline is sent all the same, from a
// copy of the bytes that were not sent yet. In any case m is not used after Write has returned. An
// error that matches ErrMessage means that m cannot be sent at all.
func (p *Pipe) Write(ctx context.Context, m *Message) error {
	if e := p.events; e != nil && e.MessageWritten != nil {
		info := p.beginWritten(m)
		return p.reportWritten(info, p.write(ctx, m))
	}
	return p.write(ctx, m)
}

func (p *Pipe) write(ctx context.Context, m *Message) error {
	_, op, err := p.engine.send(ctx, m, false)
	if op == nil {
		return err
	}
	return op.Wait(ctx)
}

// TryWrite sends m as Write does if that is possible without blocking. taken is true if m was
// accepted; the memory of m may then be reused. TryWrite accepts messages that the native dialect
// copies, while the limits on bytes in flight allow it and no other writer waits for them; in the
// compatible dialect it accepts none. If taken is false and err is nil, Write may still be able to
// send m. If err is not nil, m cannot be sent.
func (p *Pipe) TryWrite(m *Message) (taken bool, err error) {
	if e := p.events; e != nil && e.MessageWritten != nil {
		info := p.beginWritten(m)
		if taken, err = p.engine.tryWrite(m); taken || err != nil {
			_ = p.reportWritten(info, err)
		}
		return taken, err
	}
	return p.engine.tryWrite(m)
}

// WriteConfirmed sends m as Write does, and returns when the peer has read or discarded m and all
// earlier messages. If the peer does not support confirmations, it sends nothing and the error
// matches ErrNoControl. If ctx or the pipe ends after m has been sent and before the confirmation,
// the error matches ErrUnconfirmed; an end of ctx leaves the pipe up. A message that the peer
// leaves unread when it closes is not confirmed.
func (p *Pipe) WriteConfirmed(ctx context.Context, m *Message) error {
	if e := p.events; e != nil && e.MessageWritten != nil {
		info := p.beginWritten(m)
		return p.reportWritten(info, p.writeConfirmed(ctx, m))
	}
	return p.writeConfirmed(ctx, m)
}

func (p *Pipe) writeConfirmed(ctx context.Context, m *Message) error {
	if !p.Confirms() {
		return p.errorFor("write", "", ErrNoControl)
	}
	number, op, err := p.engine.send(ctx, m, false)
	if op != nil {
		err = op.Wait(ctx)
		number = op.number
	}
	if err != nil {
		return err
	}
	return p.engine.awaitRead(ctx, number)
}

// WriteAsync enqueues m as Write does, but returns before m has been sent. The result is never nil;
// it is done when the memory of m may be reused, or with the error of the write. Until then m and
// its memory belong to the pipe. Messages are sent in the order of the calls. WriteAsync blocks
// while the limits on bytes in flight are exceeded. ctx has the effect that it has on Write, also
// after WriteAsync has returned.
//
// Over plain TCP, on Linux, inline parts of 16 KiB or more are not copied if they cannot be sent at
// once: the operation then lasts until the peer has read enough to make room for them, and for up to
// 256 KiB of messages that follow them.
func (p *Pipe) WriteAsync(ctx context.Context, m *Message) *WriteOp {
	if e := p.events; e != nil && e.MessageWritten != nil {
		info := p.beginWritten(m)
		op := p.writeAsync(ctx, m)
		op.whenDone(func(err error) { _ = p.reportWritten(info, err) })
		return op
	}
	return p.writeAsync(ctx, m)
}

func (p *Pipe) writeAsync(ctx context.Context, m *Message) *WriteOp {
	_, op, err := p.engine.send(ctx, m, true)
	switch {
	case err != nil:
		return completedOp(err)
	case op == nil:
		return p.written
	}
	op.watch(ctx)
	return op
}
