package xth

import (
	"encoding/binary"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/onesided"
)

// native is the [onesided.Protocol] of one end of a channel in the native dialect. Descriptions and
// revocations are announced on the first connection, and completions return on the second.
type native struct {
	here, there *route      // descriptions of this end and of the peer
	kind        device.Kind // nil for host memory
}

// newNative returns an end of a channel of f for the native dialect and starts its goroutines. The end
// owns the connections of link, and retains the functions of link that it calls.
func newNative(link channel.Link, f Factory) channel.Channel {
	from, to := link.Conns[0].LocalAddr(), link.Conns[0].RemoteAddr()
	p := &native{
		here:  table.joinSender(endpoints{from: from, to: to}),
		there: table.joinReceiver(endpoints{from: to, to: from}),
		kind:  f.kind,
	}
	e := onesided.New(link, onesided.Config{
		Protocol:  p,
		MaxFrame:  announcementSize,
		WrapError: func(err error) error { return wrapError(f.name, link.Peer, err) },
		Streams:   f.kind != nil,
	})
	e.Run()
	return e
}

// Close implements [onesided.Protocol]. It removes this end from its two routes, through which it
// announced and claimed descriptions in this process.
func (p *native) Close() {
	table.leaveSender(p.here)
	table.leaveReceiver(p.there)
}

// Sizes of frames. An announcement is the id of a transfer and the address of its description, or 0 if
// that was revoked; a completion is an id.
const (
	announcementSize = 16
	completionSize   = 8
)

// Append implements [onesided.Protocol]. It appends the encoding of f to dst and returns the
// extended slice: the id of the transfer, followed, unless f is a confirmation, by the address of
// the description, or by 0 if f revokes it.
func (p *native) Append(dst []byte, f onesided.Frame) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, f.ID)
	switch f.Kind {
	case onesided.Describe:
		return binary.LittleEndian.AppendUint64(dst, f.Source.(*description).address())
	case onesided.Revoke:
		return binary.LittleEndian.AppendUint64(dst, 0)
	}
	return dst
}

// Decode implements [onesided.Protocol]. It decodes text, a frame of the connection with the index
// conn, and does not alias it. If text announces a description, Decode takes the description with
// that address from the peer's route and returns it as f.Remote.Memory. The error matches
// channel.ErrProtocol if text has the wrong size or the peer has described nothing at the address,
// and channel.ErrAborted if the sender closed before this end opened. After an error f must not be
// used.
func (p *native) Decode(conn int, text []byte) (f onesided.Frame, err error) {
	want, what := announcementSize, "announcement"
	if conn == 1 {
		want, what = completionSize, "completion"
	}
	if len(text) != want {
		return f, protocolError("%s: a frame of %d bytes, want %d", what, len(text), want)
	}
	f.ID = binary.LittleEndian.Uint64(text)
	if conn == 1 {
		f.Kind = onesided.Copied
		return f, nil
	}
	address := binary.LittleEndian.Uint64(text[8:])
	if address == 0 {
		f.Kind = onesided.Revoke
		return f, nil
	}
	o, err := p.there.claim(address)
	if err != nil {
		return f, err
	}
	f.Kind, f.Remote = onesided.Describe, onesided.Remote{Memory: o, Size: uint64(o.size()), Pieces: 1}
	return f, nil
}

// Describe implements [onesided.Protocol]. It returns a new description of src and adds it to the
// route of this end, where the peer can claim it. The description retains src until it is revoked
// or finished. The error is that of recordWritten for memory of a device kind, and nil for host memory.
func (p *native) Describe(src device.Buffer) (onesided.Source, error) {
	o := newDescription()
	var written device.Event
	if p.kind != nil {
		var err error
		if written, err = recordWritten(p.kind, src); err != nil {
			return nil, err
		}
	}
	o.reset(src, written)
	p.here.add(o)
	return o, nil
}

// Pull implements [onesided.Protocol]. It copies the tensor that r.Memory describes into r.Buf, or
// enqueues the copy if the memory is of a device kind. It stops between two chunks if the sender has revoked the description, with the error
// channel.ErrAborted, or if r.Stopped returns an error, with that error. It stores the outcome in
// the description, for the sender, and returns it.
func (p *native) Pull(r *onesided.Recv) error {
	o := r.Memory.(*description)
	err := copyDescribed(p.kind, r.Buf, o, func() error {
		if o.stopRequested() {
			return channel.ErrAborted
		}
		return r.Stopped()
	})
	o.finish(err)
	return err
}

// Revoke implements [onesided.Source]. It withdraws the tensor, and waits until the receiver does
// not use the memory any more, for one chunk of a running copy at most.
func (o *description) Revoke() { o.revoke() }

// Copied implements [onesided.Source]. It returns nil if the receiver has stored in o that it
// copied all bytes, and otherwise an error that matches channel.ErrProtocol.
func (o *description) Copied() error {
	if result, done := o.outcome(); !done || result != nil {
		return protocolError("a completion of a tensor that was not copied")
	}
	return nil
}
