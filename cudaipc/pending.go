package cudaipc

import (
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
)

// pendingUses are uses of values by work of streams, each until an event has completed. The events of one
// stream complete in order, so that only the oldest of each stream is queried. The owner locks it. Calls
// need the context of gpu to be current.
type pendingUses[T any] struct {
	gpu     *gpu
	streams fifo.Queue[*streamUses[T]] // those with uses, in turns
	of      map[driver.Stream]*streamUses[T]
}

// streamUses are the uses by work of one stream, the oldest first.
type streamUses[T any] struct {
	stream driver.Stream
	uses   fifo.Queue[pendingUse[T]]
}

type pendingUse[T any] struct {
	value T
	event driver.Event
}

// add records an event on stream and keeps value until it completes. The error is that of the driver.
func (p *pendingUses[T]) add(value T, stream driver.Stream) error {
	e, err := p.gpu.takeEvent()
	if err != nil {
		return err
	}
	if err := p.gpu.driver.Record(e, stream); err != nil {
		p.gpu.putEvent(e)
		return err
	}
	s := p.of[stream]
	if s == nil {
		s = &streamUses[T]{stream: stream}
		if p.of == nil {
			p.of = make(map[driver.Stream]*streamUses[T])
		}
		p.of[stream] = s
		p.streams.Push(s)
	}
	s.uses.Push(pendingUse[T]{value, e})
	return nil
}

// collect removes the uses that have ended on at most the given number of streams, which take turns, and
// calls end with each value. It queries one event more for each stream than uses have ended.
func (p *pendingUses[T]) collect(streams int, end func(T)) {
	for range min(streams, p.streams.Len()) {
		s := p.streams.Pop()
		for s.uses.Len() > 0 {
			if done, err := p.gpu.driver.EventDone(s.uses.Front().event); !done || err != nil {
				break
			}
			u := s.uses.Pop()
			p.gpu.putEvent(u.event)
			end(u.value)
		}
		if s.uses.Len() > 0 {
			p.streams.Push(s)
		} else {
			delete(p.of, s.stream)
		}
	}
}

// all is the argument of collect for all streams.
func (p *pendingUses[T]) all() int { return p.streams.Len() }

// polledStreams bounds the streams that one allocation polls while there is other free memory.
const polledStreams = 4
