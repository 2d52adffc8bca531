package pipe

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/compress"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// nativeWriter is the sending half of a pipe in the native dialect. Messages are numbered and
// written to the message stream in order: by their callers where the stream accepts the bytes
// without blocking, and otherwise by the run loop (run, a goroutine of the pipe), from queued
// blocks. For a message with parts that are not inline there is a nativeWriteOp until its transfers
// have ended.
type nativeWriter struct {
	*sender
	pipe     *nativePipe
	stream   transport.Stream
	reads    transport.Poller         // stream, if it can be polled; otherwise nil
	shared   transport.WritePoller    // stream, if it is in shared memory; otherwise nil
	window   transport.WindowedStream // stream, if it has a window; otherwise nil
	gatherer transport.Gatherer       // stream, if it gathers; otherwise nil

	batching atomic.Bool // the run loop is to yield before it writes, so that more messages share a write

	// Of the run loop.
	turn     []*block // those that it writes
	gathered [][]byte // their bytes

	// Guarded by mu of the sender.
	frame      native.Message // the descriptor of the message being encoded
	count      uint64         // number of messages so far
	answered   uint64         // number of messages received before the last one of these
	blocks     fifo.Queue[*block]
	writing    bool                      // a block has been taken from blocks and is not written yet
	unfinished []*block                  // blocks that were not written completely; come before blocks
	ops        map[uint64]*nativeWriteOp // messages with transfers that have not ended

	directBuf [1][]byte // arguments of TryWrite for a block
	head      []byte    // encoded descriptor of a message that is written from its own memory
	pieces    [][]byte  // head and the memory of the inline parts
	saved     savings
}

func (o *nativeWriter) init(p *nativePipe) {
	o.pipe, o.sender = p, &p.sender
	o.busy = func() bool { return o.writing || o.blocks.Len() > 0 || len(o.ops) > 0 }
	o.ops = map[uint64]*nativeWriteOp{}
}

// attach gives the writer the stream s, to which it writes all messages. It is called once, after
// init and before any other method.
func (o *nativeWriter) attach(s transport.Stream) {
	o.stream = s
	o.reads, _ = s.(transport.Poller)
	o.shared, _ = s.(transport.WritePoller)
	o.window, _ = s.(transport.WindowedStream)
	o.gatherer, _ = s.(transport.Gatherer)
}

func (p *nativePipe) send(ctx context.Context, m *Message, async bool) (number uint64, op *WriteOp, err error) {
	o := &p.out
	size, err := o.check(m)
	if err != nil {
		return 0, nil, err
	}
	cost := o.cost(&size)
	if ctx.Err() != nil || !p.awaitQuota() || !o.budget.acquire(ctx, o.rejected, cost) {
		return 0, nil, o.writeError(cmp.Or(context.Cause(ctx), p.context.unadmittedError()))
	}
	var forms *compressedForms
	if err = m.checkDeadline(); err == nil { // it may have passed during the wait
		forms, err = o.compress(ctx, m, &size)
	}
	if err != nil {
		o.budget.release(cost)
		return 0, nil, o.writeError(err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.rejection != nil {
		forms.release()
		o.budget.release(cost)
		return 0, nil, o.rejection
	}
	number, op = o.start(m, &size, forms, o.borrowFrom(async))
	o.writeQueued(m.More)
	return number, op, nil
}

// check returns the size of m if m can be sent. It returns an *Error if the pipe has ended, if m
// does not fit the limits or the channels of the pipe, or if m's deadline has passed.
func (o *nativeWriter) check(m *Message) (messageSize, error) {
	p := o.pipe
	if err := p.Err(); err != nil {
		return messageSize{}, p.errorFor("write", "", err)
	}
	size, err := p.measure(m)
	if err == nil {
		if n := max(len(m.Payloads), len(m.Tensors)); n > native.MaxParts {
			err = messageError("%w", limitError("parts of a kind in the native dialect", uint64(n), native.MaxParts))
		} else {
			err = m.checkDeadline()
		}
	}
	if err != nil {
		return messageSize{}, p.errorFor("write", "", err)
	}
	return size, nil
}

// start numbers m and writes or enqueues its descriptor and inline parts. Before that it passes the
// parts that are not inline to their channels, so that the peer cannot ask for a part before its
// channel has it; tensors whose target device the receiver chooses follow later. It returns the
// number of m and an operation that ends when m's memory may be reused, or nil if that is so
// already. The caller has acquired o.cost(size) bytes of the budgets; start takes these bytes and
// forms. The caller holds mu.
func (o *nativeWriter) start(m *Message, size *messageSize, forms *compressedForms, borrowFrom int) (uint64, *WriteOp) {
	number := o.count
	o.count++
	large := o.describe(m, size, forms)
	o.markEager(m)
	o.countCompressed(size, forms)
	share := o.settleCost(size, forms)
	defer o.frame.Reset()
	if large == 0 {
		o.traffic.add(size.data)
		op := o.writeOrEnqueue(m, forms, borrowFrom, share)
		if op != nil {
			op.number = number
		}
		forms.release()
		return number, op
	}
	op := &nativeWriteOp{out: o, forms: forms, parts: make([]writePart, 0, large)}
	op.init(o.sender, op)
	op.state, op.msg, op.number, op.data, op.pending = opStarted, m, number, size.data, int32(large)
	for i := range m.Payloads {
		if !o.frame.Payloads[i].Inline {
			op.parts = append(op.parts, writePart{index: i, state: partTransferring, channel: o.pipe.mover.Lane(payloadLane), eager: o.frame.Payloads[i].Eager})
		}
	}
	for i := range m.Tensors {
		switch part := &o.frame.Tensors[i]; {
		case part.Joined:
			last := &op.parts[len(op.parts)-1]
			if last.pieces == nil {
				last.pieces = make([][]byte, 0, 1+native.JoinedTo(o.frame.Tensors, last.index))
				last.pieces = m.Tensors[last.index].Buffer.AppendSegments(last.pieces)
			}
			last.pieces = m.Tensors[i].Buffer.AppendSegments(last.pieces)
		case !part.Inline:
			op.parts = append(op.parts, writePart{index: i, eager: part.Eager})
		}
	}
	for k := range op.parts {
		op.parts[k].id = transferID(o.pipe.role == channel.RoleListen, number, op.parts[k].index)
	}
	o.ops[number] = op
	share, op.share = share.split(o.frame.EncodedSize())
	op.start()
	o.writeOrEnqueue(m, forms, neverBorrow, share)
	if o.reads != nil && (slices.ContainsFunc(op.parts, func(p writePart) bool { return !p.eager }) || o.pipe.mover.Credit() == 0) {
		o.reads.ExpectOthers() // the peer asks for the part, or returns credit, on the control stream
	}
	return number, &op.WriteOp
}

// describe fills in o.frame for m, without the bytes of the parts, and returns the number of transfers,
// which are the parts that are neither inline nor joined. A part is inline if its length on the wire,
// that of its compressed form in forms if it has one, is within the limit for a part and the inline
// bytes that are left to the message; payloads come before tensors. A tensor that is not empty must also
// be in memory of cpu:0 without a stream, and its target device must be cpu:0 or unset. In an answer,
// see isAnswer, all parts are inline. If both ends support that, an uncompressed tensor from contiguous
// memory of this kind to cpu:0 is joined to the last one that is not inline, if that is such a tensor
// too. o.frame refers to the metadata of m until o.frame.Reset. The caller holds mu.
func (o *nativeWriter) describe(m *Message, size *messageSize, forms *compressedForms) (large int) {
	f := &o.frame
	f.Metadata, f.Timeout = m.Metadata, 0
	if !m.Deadline.IsZero() {
		f.Timeout = max(1, time.Until(m.Deadline))
	}
	f.Payloads, f.Tensors = f.Payloads[:0], f.Tensors[:0]
	limit := maxInlinePart
	switch {
	case forms != nil:
	case o.zeroCopy() && size.data <= maxInlineShared:
		limit = maxInlineShared
	case o.isAnswer(m, size):
		limit = inlineMessage
	}
	left := max(inlineMessage, limit)
	fits := func(n int) bool {
		if n > min(limit, left) {
			return false
		}
		left -= n
		return true
	}
	for i := range m.Payloads {
		p := &m.Payloads[i]
		part := native.Payload{Length: uint64(len(p.Data)), Metadata: p.Metadata}
		if form := forms.payload(i); form != nil {
			part.Codec, part.CompressedLength = compress.Codec(p.Compression), formLength(form)
		}
		if part.Inline = fits(int(part.WireLength())); !part.Inline {
			large++
		}
		f.Payloads = append(f.Payloads, part)
	}
	joinable, joined := false, 0 // of the last tensor that is not inline: others may be joined, and how many are
	for i := range m.Tensors {
		t := &m.Tensors[i]
		part := native.Tensor{
			Length: uint64(t.Buffer.Len()), Metadata: t.Metadata,
			Source: t.Buffer.Device(), Target: t.TargetDevice,
		}
		if form := forms.tensor(i); form != nil {
			part.Codec, part.CompressedLength = compress.Codec(t.Compression), formLength(form)
		}
		n, plain := int(part.WireLength()), t.Buffer.IsHost() && t.Buffer.Stream() == nil &&
			part.Source == device.CPU() && (part.Target.IsZero() || part.Target == device.CPU())
		if part.Inline = n == 0 || plain && fits(n); !part.Inline {
			_, contiguous := t.Buffer.Contiguous()
			canJoin := o.pipe.joins && plain && contiguous && part.Codec == compress.None && part.Target == device.CPU()
			if part.Joined = canJoin && joinable && joined < native.MaxJoined; part.Joined {
				joined++
			} else {
				large++
				joinable, joined = canJoin, 0
			}
		}
		f.Tensors = append(f.Tensors, part)
	}
	return large
}

// A part is inline if it has at most maxInlinePart bytes and the inline parts of the message
// together at most inlineMessage. Through shared memory all parts of a message of at most
// maxInlineShared bytes are inline: Read copies them from the ring to their destination, and
// a rendezvous would take longer.
const (
	maxInlinePart   = 64 << 10
	inlineMessage   = 1 << 20
	maxInlineShared = native.MaxInline
)

// inlineLimit returns the most bytes that an inline part can have on this pipe's stream. For large
// messages, and messages with compressed parts, the limit may be lower.
func (o *nativeWriter) inlineLimit() int {
	if o.zeroCopy() {
		return maxInlineShared
	}
	return maxInlinePart
}

// isAnswer reports whether m is taken for an answer, which arrives sooner inline than eagerly: exactly
// one message was received since the last one was sent, so the peer probably waits for m and reads it
// from the socket itself, and nothing else is being sent. Each part goes between hosts, the peer has granted
// credit for all of them, and the window of the stream has room. The caller holds mu.
func (o *nativeWriter) isAnswer(m *Message, size *messageSize) bool {
	p, n := o.pipe, size.data
	if n <= maxInlinePart || n > inlineMessage || !p.eager || o.reads == nil || o.window == nil || p.context.opts.Checksum {
		return false
	}
	if o.writing || o.blocks.Len() > 0 || len(o.ops) > 0 || p.in.stream.arrivals.Load() != o.answered+1 {
		return false
	}
	// The peer has the whole descriptor before the bytes, and these leave from their own memory.
	if size.descriptor > readBuffer/2 || len(m.Payloads)+len(m.Tensors) > maxDirectParts {
		return false
	}
	for i := range m.Tensors {
		b, target := m.Tensors[i].Buffer, m.Tensors[i].TargetDevice
		toHost := target == device.CPU() || target.IsZero() && p.onlyHosts
		if !b.IsHost() || b.Stream() != nil || b.Device() != device.CPU() || !toHost {
			return false
		}
		if !p.onBulk(b.Len()) || !p.onBulk(n) { // they could be joined
			return false
		}
	}
	return p.mover.Credit() >= n && o.window.SendWindow() >= n+size.descriptor
}

// encode copies the descriptor and the inline parts of m, which o.frame describes, to a block of
// the queue. The block takes share, m's share of the budgets. forms has the compressed forms of m's
// parts, nil if there are none. encode does not wake the goroutine of run. The caller holds mu.
func (o *nativeWriter) encode(m *Message, forms *compressedForms, share budgetShare) {
	b := o.blockFor(o.frame.EncodedSize())
	o.chargeBlock(b, share)
	start := len(b.data)
	b.data = o.frame.AppendDescriptor(b.data, o.pipe.context.opts.Checksum)
	for i := range m.Payloads {
		if o.frame.Payloads[i].Inline {
			b.data = appendPart(b.data, device.Bytes(m.Payloads[i].Data), forms.payload(i))
		}
	}
	for i := range m.Tensors {
		if o.frame.Tensors[i].Inline {
			b.data = appendPart(b.data, m.Tensors[i].Buffer, forms.tensor(i))
		}
	}
	if o.pipe.context.opts.Checksum {
		b.data = native.AppendChecksum(b.data, start)
	}
}

// appendPart appends copies of the bytes of a part to dst and returns the extended slice. The bytes
// are those of form, the compressed form of the part. If form is nil they are those of b, which
// must then be in host memory.
func appendPart(dst []byte, b device.Buffer, form [][]byte) []byte {
	if p, ok := b.Contiguous(); ok && form == nil {
		return append(dst, p...)
	}
	if form == nil {
		form = b.AppendSegments(nil)
	}
	for _, p := range form {
		dst = append(dst, p...)
	}
	return dst
}

// stopWriting implements engine: it ends the writes that have not completed with err, and makes
// further ones fail with err, unless they are rejected with another error already. Queued writes
// fail before it returns. A write of which channels are sending parts fails once the channels have
// released the memory, and one whose bytes a goroutine is writing ends with that goroutine's write;
// stopWriting does not wait for these. A second call has no effect.
func (p *nativePipe) stopWriting(err error) {
	o := &p.out
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.halt(err) {
		return
	}
	if len(o.unfinished) > 0 {
		o.blocksDone(err, o.unfinished...)
		o.unfinished = nil
	}
	for o.blocks.Len() > 0 {
		o.recycle(o.blocks.Pop(), err)
	}
	for _, op := range o.ops {
		op.fail(err)
	}
	o.signalIdle()
}
