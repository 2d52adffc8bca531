// Package streampool has the streams of devices that messages share.
package streampool

import (
	"sync"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// least is the number of streams of a device that are made before one is used again: users that share a stream wait for
// each other's work.
const least = 32

// Pool has streams by device. Memory that is valid on a stream stays so when another user gets the stream. The zero
// Pool is empty. Its methods may be called concurrently.
type Pool struct {
	mu      sync.Mutex
	devices map[device.Device]*streams
}

// streams is the streams of one device.
type streams struct {
	free []device.Stream // the one that was used last comes last
	made int             // including those in use
}

// of returns the streams of a device. The caller holds p.mu.
func (p *Pool) of(on device.Device) *streams {
	if p.devices == nil {
		p.devices = map[device.Device]*streams{}
	}
	s := p.devices[on]
	if s == nil {
		s = &streams{}
		p.devices[on] = s
	}
	return s
}

// Get returns a stream on a device of kind, or nil if the kind has no streams. The error is that of the kind.
func (p *Pool) Get(kind device.Kind, on device.Device) (device.Stream, error) {
	p.mu.Lock()
	if s := p.of(on); len(s.free) > 0 && s.made >= least {
		first := s.free[0]
		s.free = s.free[1:]
		p.mu.Unlock()
		return first, nil
	}
	p.mu.Unlock()
	made, err := kind.NewStream(on)
	if made == nil || err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of(on).made++
	return made, nil
}

// Put returns streams that Get has returned, each once.
func (p *Pool) Put(used ...device.Stream) {
	for _, u := range used {
		on := u.Device()
		p.mu.Lock()
		if s := p.of(on); len(s.free) < least {
			s.free = append(s.free, u)
		} else {
			s.made--
		}
		p.mu.Unlock()
	}
}
