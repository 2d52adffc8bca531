package cudaipc

import (
	"context"
	"runtime"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
)

// delivery is the last step of a copy from a device to host memory that is not page-locked: the bytes
// are in page-locked memory, and a goroutine copies them once the work of the device is done. Events
// and streams count it as work of the stream.
type delivery struct {
	done chan struct{}
	err  error // of the device, once done is closed
}

// deliveries are those that belong to the work of a stream.
type deliveries struct {
	mu  sync.Mutex
	all map[*delivery]struct{}
}

// add adds more to the work of the stream.
func (s *deliveries) add(more ...*delivery) {
	if len(more) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range more {
		s.insert(d)
	}
}

// replace makes d the only one: it completes after all others.
func (s *deliveries) replace(d *delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.all)
	s.insert(d)
}

func (s *deliveries) insert(d *delivery) {
	if s.all == nil {
		s.all = make(map[*delivery]struct{})
	}
	s.all[d] = struct{}{}
}

// unfinished returns those that are not done or have failed, as a new slice, or nil. An error of the device
// stays with the stream.
func (s *deliveries) unfinished() (left []*delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d := range s.all {
		select {
		case <-d.done:
			if d.err == nil {
				delete(s.all, d)
				continue
			}
		default:
		}
		left = append(left, d)
	}
	return left
}

// deliver enqueues a copy of device memory at at to page-locked memory on s, and starts a goroutine
// that copies it to dst, a part of b, when it has arrived and the earlier deliveries of s are done. The
// context of s must be current.
func (s *Stream) deliver(b device.Buffer, dst []byte, at driver.Ptr) error {
	g := s.gpu
	staged, err := g.pinned.take(len(dst))
	if err != nil {
		return err
	}
	if err := g.driver.Copy(driver.HostPtr(staged.data), at, len(dst), s.handle); err != nil {
		g.pinned.putIdle(staged)
		return err
	}
	arrived, err := s.Record()
	if err != nil {
		g.pinned.put(staged, s.handle)
		return err
	}
	d := &delivery{done: make(chan struct{})}
	s.deliveries.replace(d)
	g.background.Go(func() {
		defer close(d.done)
		if d.err = arrived.Synchronize(context.Background()); d.err == nil {
			copy(dst, staged.data)
		}
		runtime.KeepAlive(b)
		arrived.Release()
		g.pinned.putIdle(staged)
	})
	return nil
}
