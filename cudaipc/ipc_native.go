package cudaipc

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/onesided"
)

// Sizes of frames. Every frame begins with its kind, seven reserved bytes, and the id of the transfer. A
// description continues with the size of the tensor, its offset in the allocation, and the handles of
// the allocation and of an event. Numbers are little-endian.
const (
	ipcHead        = 16
	ipcDescription = ipcHead + 16 + 2*64
)

// ipcEnd is one end of a channel in the native dialect. It implements [onesided.Protocol] and
// [onesided.Scheduler].
//
// The sender of a tensor records an event of its own on the tensor's stream and sends handles of the
// memory and of the event. The receiver maps both, makes its stream wait for the event, enqueues the
// copy, and records the same event after it. Once the sender knows that, its stream waits for the
// event, so that the memory can be changed in stream order. Neither end waits for a device.
//
// A copy that is enqueued cannot be recalled. If the sender revokes the tensor after that, the copy
// may read bytes of later tensors; the receiver drops them, because the sender does not acknowledge
// the transfer. The memory itself stays: the sender returns it to the driver only when the process of
// the peer has ended.
type ipcEnd struct {
	kind   *Kind
	engine *onesided.Engine
	link   channel.Link

	peer int // process of the peer, 0 if it is not known

	imports *importSet

	maxWrapped int

	mu      sync.Mutex
	closed  bool
	events  map[*gpu][]*sharedEvent       // idle; events are not shared between peers
	wrapped map[driver.IPCHandle]struct{} // allocations of the application that the peer may map
	warned  []string                      // reasons that were logged
}

// newIPCEnd returns an end over link and starts its goroutines.
func newIPCEnd(kind *Kind, link channel.Link, process int) channel.Channel {
	p := &ipcEnd{
		kind: kind, link: link, peer: process, imports: newImportSet(kind),
		events: make(map[*gpu][]*sharedEvent), maxWrapped: maxWrapped, wrapped: make(map[driver.IPCHandle]struct{}),
	}
	p.engine = onesided.New(link, onesided.Config{
		Protocol:    p,
		MaxFrame:    ipcDescription,
		WrapError:   func(err error) error { return &channel.Error{Channel: IPCName, Peer: link.Peer, Err: err} },
		Streams:     true,
		Acknowledge: true,
	})
	p.engine.Run()
	return p.engine
}

// ipcSource is a tensor of this end that the peer may copy.
type ipcSource struct {
	end    *ipcEnd
	stream *Stream
	event  *sharedEvent
	memory driver.IPCHandle
	offset uint64
	size   uint64
	src    device.Buffer // kept reachable
	staged *Memory       // a copy of src, if the peer does not map that
}

// Describe implements [onesided.Protocol]. It records an event on src's stream. Memory of the application
// that the peer cannot map, or beyond maxWrapped allocations, is copied to memory of the Kind, on that
// stream. The error matches device.ErrMemory or ErrOutOfMemory, or is that of the driver.
func (p *ipcEnd) Describe(src device.Buffer) (_ onesided.Source, err error) {
	m, at, err := p.kind.memoryOf(src)
	if err != nil {
		return nil, err
	}
	s := &ipcSource{end: p, src: src, size: uint64(src.Len())}
	if s.stream, err = m.gpu.streamOf(src); err != nil {
		return nil, err
	}
	if err := m.gpu.enter(); err != nil {
		return nil, err
	}
	defer m.gpu.leave()
	defer func() {
		if err != nil && s.staged != nil {
			s.staged.release()
		}
	}()
	base, handle, reason, err := p.export(m)
	if reason != "" {
		p.warn(src.Device(), reason)
		if s.staged, err = m.gpu.alloc(src.Len(), s.stream); err != nil {
			return nil, err
		}
		if err := m.gpu.driver.Copy(s.staged.ptr, at, src.Len(), s.stream.handle); err != nil {
			return nil, err
		}
		m, at = s.staged, s.staged.ptr
		base, handle, _, err = p.export(m)
	}
	if err != nil {
		return nil, err
	}
	m.usedOn(s.stream)
	s.memory, s.offset = handle, uint64(at-base)
	if s.event, err = p.takeEvent(m.gpu); err != nil {
		return nil, err
	}
	if err := m.gpu.driver.Record(s.event.handle, s.stream.handle); err != nil {
		p.putEvent(s.event)
		return nil, err
	}
	return s, nil
}

// warn logs, once for each channel and reason, that tensors are copied once more.
func (p *ipcEnd) warn(d device.Device, reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(p.warned, reason) {
		p.warned = append(p.warned, reason)
		p.link.Logger.Warn("cuda_ipc copies tensors once more, because "+reason, "device", d.String(), "peer", p.link.Peer)
	}
}

// Copied implements [onesided.Source]. It makes the stream of the tensor wait for the peer's copy.
func (s *ipcSource) Copied() error {
	g := s.stream.gpu
	if err := g.enter(); err != nil {
		return err
	}
	defer g.leave()
	if err := g.driver.Wait(s.stream.handle, s.event.handle); err != nil {
		return err
	}
	if s.staged != nil {
		s.staged.release()
	}
	s.end.putEvent(s.event)
	return nil
}

// Revoke implements [onesided.Source]. It does not wait. The event is not used again before the
// process of the peer has ended, because the peer may record it later.
func (s *ipcSource) Revoke() { s.event.gpu.retire(s.event, s.end.peer) }

// Append implements [onesided.Protocol].
func (p *ipcEnd) Append(dst []byte, f onesided.Frame) []byte {
	dst = append(dst, byte(f.Kind), 0, 0, 0, 0, 0, 0, 0)
	dst = binary.LittleEndian.AppendUint64(dst, f.ID)
	if f.Kind != onesided.Describe {
		return dst
	}
	s := f.Source.(*ipcSource)
	dst = binary.LittleEndian.AppendUint64(dst, s.size)
	dst = binary.LittleEndian.AppendUint64(dst, s.offset)
	dst = append(dst, s.memory[:]...)
	return append(dst, s.event.ipc[:]...)
}

// ipcRemote is a tensor of the peer.
type ipcRemote struct {
	memory, event driver.IPCHandle
	offset        uint64
}

// Decode implements [onesided.Protocol]. The error matches channel.ErrProtocol.
func (p *ipcEnd) Decode(_ int, text []byte) (f onesided.Frame, err error) {
	f.Kind = onesided.Kind(text[0])
	want := ipcHead
	if f.Kind == onesided.Describe {
		want = ipcDescription
	}
	if len(text) != want || f.Kind < onesided.Describe || f.Kind > onesided.Acknowledged ||
		binary.LittleEndian.Uint64(text)>>8 != 0 {
		return f, fmt.Errorf("%w: a frame of %d bytes of kind %d", channel.ErrProtocol, len(text), text[0])
	}
	f.ID = binary.LittleEndian.Uint64(text[8:])
	if f.Kind == onesided.Describe {
		r := &ipcRemote{offset: binary.LittleEndian.Uint64(text[ipcHead+8:])}
		rest := text[ipcHead+16:]
		rest = rest[copy(r.memory[:], rest):]
		copy(r.event[:], rest)
		f.Remote = onesided.Remote{Memory: r, Size: binary.LittleEndian.Uint64(text[ipcHead:]), Pieces: 1}
	}
	return f, nil
}

// Start implements [onesided.Scheduler]. Enqueueing a copy does not block, so that the goroutine that
// reads frames does it.
func (p *ipcEnd) Start(r *onesided.Recv, reading bool) (inline bool) {
	if !reading {
		p.engine.Go(func() { r.Finish(p.Pull(r)) })
	}
	return reading
}

// Stop implements [onesided.Scheduler]. A copy is enqueued in one step, so that it cannot be ended
// early.
func (p *ipcEnd) Stop(*onesided.Recv, error) (idle bool) { return false }

// Pull implements [onesided.Protocol]. It enqueues the copy on the stream of r.Buf. The error is
// r.Stopped's, or matches device.ErrMemory, or channel.ErrProtocol if the tensor is not within the
// peer's allocation, or is that of the driver.
func (p *ipcEnd) Pull(r *onesided.Recv) error {
	if err := r.Stopped(); err != nil {
		return err
	}
	m, at, err := p.kind.memoryOf(r.Buf)
	if err != nil {
		return err
	}
	g := m.gpu
	s, err := g.streamOf(r.Buf)
	if err != nil {
		return err
	}
	if err := g.enter(); err != nil {
		return err
	}
	defer g.leave()
	m.usedOn(s)
	return p.imports.with(func() error { return p.pull(r.Memory.(*ipcRemote), at, r.Buf.Len(), s) })
}

// pull enqueues the copy of remote, of n bytes, to at on s.
func (p *ipcEnd) pull(remote *ipcRemote, at driver.Ptr, n int, s *Stream) error {
	g := s.gpu
	base, size, err := p.imports.memory(s, &remote.memory)
	if err != nil {
		return err
	}
	event, err := p.imports.event(g, &remote.event)
	if err != nil {
		return err
	}
	if remote.offset > uint64(size) || uint64(n) > uint64(size)-remote.offset {
		return fmt.Errorf("%w: a tensor of %d bytes at %d in an allocation of %d", channel.ErrProtocol, n, remote.offset, size)
	}
	return exchange(g, event, s, func() error {
		return g.driver.Copy(at, base+driver.Ptr(remote.offset), n, s.handle)
	})
}

// Close implements [onesided.Protocol]. It unmaps the peer's memory that no other channel uses, and
// keeps the events of this end until the process of the peer has ended.
func (p *ipcEnd) Close() {
	p.imports.close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for g, events := range p.events {
		for _, e := range events {
			g.retire(e, p.peer)
		}
	}
	p.events = nil
}
