package cma

import (
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// maxDescriptor is the size of an announcement with every number in its longest
// form.
const maxDescriptor = 1 + 9 + 9

// copier is what belongs to the goroutine that copies.
type copier struct {
	pid        uint32 // of the peer, 0 if it is not known yet
	text       [maxDescriptor]byte
	part       [1][]byte // of text
	src        [1]segment
	reader     reader
	job        job
	finished   chan error // what came of job
	completion [1]transport.Frame
}

func (c *copier) init(process int) {
	c.pid = uint32(process)
	c.finished = make(chan error, 1)
	c.job.finished = func(err error) { c.finished <- err }
	c.job.src = c.src[:]
}

// receive serves the peer's announcements in order.
func (e *end) receive() error {
	for {
		d, err := e.nextAnnouncement()
		if err != nil {
			return err
		}
		if err := e.serve(d); err != nil {
			return err
		}
		if err := e.completions.WriteFrames(e.copier.completion[:]...); err != nil {
			return err
		}
	}
}

func (e *end) nextAnnouncement() (d wire.CMADescriptor, err error) {
	n, err := e.announcements.NextFrame()
	if err != nil {
		return d, err
	}
	if n > maxDescriptor {
		return d, protocolError("an announcement of %d bytes", n)
	}
	c := &e.copier
	c.part[0] = c.text[:n]
	if err := e.announcements.ReadBody(c.part[:]...); err != nil {
		return d, err
	}
	if d, err = wire.DecodeCMADescriptor(c.part[0], wire.Limits{}); err != nil {
		return d, protocolError("%w", err)
	}
	if !isProcess(d.PID) || c.pid != 0 && c.pid != d.PID {
		return d, protocolError("an announcement of process %d, by process %d", d.PID, c.pid)
	}
	c.pid = d.PID
	return d, nil
}

// serve copies the announced tensor into the memory whose turn it is, for which it
// waits.
func (e *end) serve(d wire.CMADescriptor) error {
	t, err := e.recvs.Wait(e.life.Context())
	if err == nil {
		err = t.WaitReady()
	}
	if err == nil {
		err = e.copy(&t, d)
	}
	if err == nil {
		err = e.life.Err() // a peer that was told of the end may have changed the memory
	}
	if err != nil {
		return err
	}
	e.recvs.Pop().Done(nil)
	return nil
}

func (e *end) copy(t *transfer.Transfer, d wire.CMADescriptor) error {
	c := &e.copier
	size := t.Buf.Len()
	c.src[0] = segment{d.Ptr, uint64(size)}
	if size <= smallCopy {
		return c.reader.read(int(d.PID), t.Buf, c.src[:], 0, size)
	}
	c.job.pid, c.job.dst = int(d.PID), t.Buf
	e.crew.start(&c.job)
	select {
	case err := <-c.finished:
		return err
	case <-e.life.Context().Done():
	}
	if !e.crew.stop(&c.job, e.life.Err()) {
		<-c.finished
	}
	return e.life.Err()
}
