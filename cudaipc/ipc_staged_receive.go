package cudaipc

import (
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// maxStagedDescriptor is the size of the largest announcement.
const maxStagedDescriptor = 8 << 10

// receive reads announcements and copies the announced parts into the memory of the Recvs, in order.
// It returns the error that ends it, which is never nil.
func (e *stagedEnd) receive() error {
	offset := 0
	for {
		d, err := e.nextPart()
		if err != nil {
			return err
		}
		t, err := e.recvs.Wait(e.lifecycle.Context())
		if err != nil {
			return err
		}
		total := max(t.Buf.Len(), t.Discarded)
		n := min(slotSize, total-offset)
		if t.Discarded == 0 {
			part := t.Buf.Slice(offset, n)
			if err := e.whileWanted(e.recvs, func() error { return e.receivePart(part, d) }); err != nil {
				return err
			}
		}
		if err := e.link.Conns[1].WriteFrames(transport.Frame{nil}); err != nil {
			return err
		}
		if offset += n; offset == total {
			offset = 0
			if err := e.completeRecv(); err != nil {
				return err
			}
		}
	}
}

// completeRecv removes the first transfer of e.recvs and calls its done function.
func (e *stagedEnd) completeRecv() error {
	e.mu.Lock()
	t := e.recvs.Pop()
	cause := e.aborted
	e.mu.Unlock()
	if t.Done == nil {
		return cause
	}
	t.Done(nil)
	return nil
}

// nextPart reads an announcement, and keeps the outbox in it.
func (e *stagedEnd) nextPart() (d wire.CUDAIPCDescriptor, err error) {
	n, err := e.link.Conns[0].NextFrame()
	if err != nil {
		return d, err
	}
	if n > maxStagedDescriptor {
		return d, fmt.Errorf("%w: an announcement of %d bytes", channel.ErrProtocol, n)
	}
	text := make([]byte, n)
	if err := e.link.Conns[0].ReadBody(text); err != nil {
		return d, err
	}
	if d, err = wire.DecodeCUDAIPCDescriptor(text, wire.Limits{}); err != nil {
		return d, fmt.Errorf("%w: %w", channel.ErrProtocol, err)
	}
	if d.Outbox != nil {
		if len(e.remote) >= maxRemoteDevices {
			return d, fmt.Errorf("%w: outboxes of more than %d devices", channel.ErrProtocol, maxRemoteDevices)
		}
		e.remote[d.Device] = d.Outbox
	}
	return d, nil
}

// maxRemoteDevices bounds the outboxes of a peer.
const maxRemoteDevices = 64

// receivePart enqueues the copy of the announced part d to dst.
func (e *stagedEnd) receivePart(dst device.Buffer, d wire.CUDAIPCDescriptor) error {
	remote := e.remote[d.Device]
	if remote == nil || d.Slot >= uint64(len(remote.Events)) {
		return fmt.Errorf("%w: slot %d of device %d, which was not described", channel.ErrProtocol, d.Slot, d.Device)
	}
	m, at, err := e.kind.memoryOf(dst)
	if err != nil {
		return err
	}
	g := m.gpu
	s, err := g.streamOf(dst)
	if err != nil {
		return err
	}
	if err := g.enter(); err != nil {
		return err
	}
	defer g.leave()
	m.usedOn(s)
	return e.imports.with(func() error { return e.pull(remote, d.Slot, at, dst.Len(), s) })
}

// pull enqueues the copy of n bytes of a slot of remote to at on s.
func (e *stagedEnd) pull(remote *wire.CUDAIPCOutbox, index uint64, at driver.Ptr, n int, s *Stream) error {
	g := s.gpu
	base, size, err := e.imports.memory(s, (*driver.IPCHandle)(&remote.Memory))
	if err != nil {
		return err
	}
	event, err := e.imports.event(g, (*driver.IPCHandle)(&remote.Events[index]))
	if err != nil {
		return err
	}
	if (int(index)+1)*slotSize > size {
		return fmt.Errorf("%w: slot %d of an outbox of %d bytes", channel.ErrProtocol, index, size)
	}
	return exchange(g, event, s, func() error {
		return g.driver.Copy(at, base+driver.Ptr(index*slotSize), n, s.handle)
	})
}
