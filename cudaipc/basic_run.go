package cudaipc

import (
	"cmp"
	"errors"
	"runtime"
	"slices"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

func errIsProtocol(err error) bool {
	return errors.Is(err, channel.ErrProtocol) || errors.Is(err, transport.ErrFrame)
}

// wake makes run look for work, on a new goroutine if there is none. It does not block and takes no
// lock of e.
func (e *basicEnd) wake() {
	select {
	case e.woken <- struct{}{}:
	default:
	}
	if e.lifecycle.Err() == nil && e.running.CompareAndSwap(false, true) {
		e.lifecycle.Go(e.run)
	}
}

// spinTime is the time for which run polls without sleeping: a sleep may last a millisecond, many times
// as long as a copy of a chunk.
const spinTime = 100 * time.Microsecond

// run does the work of the channel until there is none. While copies run, or the memory of a tensor is
// not ready, it polls their events: at first continually, then at growing intervals of at most a
// millisecond.
func (e *basicEnd) run() {
	interval, began := firstQuery, time.Now()
	timer := time.NewTimer(interval)
	defer timer.Stop()
	for {
		select {
		case <-e.woken:
			interval, began = firstQuery, time.Now()
		default:
		}
		polling, err := e.step()
		switch {
		case err != nil:
			e.lifecycle.Fail(err)
			return
		case e.lifecycle.Err() != nil:
			return
		case !polling:
			e.running.Store(false)
			if len(e.woken) == 0 || !e.running.CompareAndSwap(false, true) {
				return
			}
			continue
		case time.Since(began) < spinTime:
			runtime.Gosched()
			continue
		}
		timer.Reset(interval)
		select {
		case <-e.woken:
			interval, began = firstQuery, time.Now()
		case <-timer.C:
			interval = min(2*interval, lastQuery)
		case <-e.lifecycle.Context().Done():
			return
		}
	}
}

// step does all work that can be done now. It reports whether events must be polled. After an error the
// caller must end the channel.
func (e *basicEnd) step() (polling bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended || e.host == nil {
		return false, nil
	}
	e.pollMemory()
	e.pollDraining()
	e.drainArrived()
	e.stage()
	ready := e.takeStaged()
	e.receive()
	if err := e.write(ready); err != nil {
		e.unwritable = true
		e.lifecycle.Go(func() { e.writeFailed(err) })
	}
	if e.noRecvs && e.recvQueue.Len() == 0 {
		if host, ok := e.host.(channel.Compatible); ok {
			host.EndRecv()
		}
	}
	if e.fatal != nil {
		return false, e.fatal
	}
	if e.ending != nil && e.receiving == 0 && e.arrived.Len() == 0 && !e.expectsChunks() {
		return false, e.ending
	}
	return len(e.waiting)+len(e.draining)+e.staging.Len() > 0, nil
}

// expectsChunks reports whether the peer has staged chunks that can be received, now or after further
// calls of Recv. The caller holds mu.
func (e *basicEnd) expectsChunks() bool {
	if e.link.Native {
		return e.staged.Len() > 0
	}
	return e.announced > e.receivedChunks && !(e.noRecvs && e.recvQueue.Len() == 0)
}

// fault makes op fail with err, an error of this end. In the compatible dialect, which cannot skip a
// tensor, the channel ends too. The caller holds mu.
func (e *basicEnd) fault(op *basicOp, err error) {
	err = e.wrap(err)
	if !e.link.Native {
		e.fatal = cmp.Or(e.fatal, err)
	}
	e.failOp(op, err)
}

// pollMemory finds the tensors whose memory has become ready. The caller holds mu.
func (e *basicEnd) pollMemory() {
	e.waiting = slices.DeleteFunc(e.waiting, func(op *basicOp) bool {
		if op.over {
			return true
		}
		if op.ready != nil {
			done, err := op.ready.Done()
			if !done {
				return false
			}
			op.ready.Release()
			op.ready = nil
			if err != nil {
				e.fault(op, err)
				return true
			}
		}
		op.usable = true
		switch {
		case !e.link.Native:
		case !op.send:
			op.matched = true
			e.frames.add(frameWanted, op.id)
		case op.matched:
			e.sendQueue.Push(op)
		}
		return true
	})
}
