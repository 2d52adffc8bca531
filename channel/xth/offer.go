package xth

import (
	"sync"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// offer is one tensor that a sender lets its peer copy. The sender keeps the
// memory in place until the offer is withdrawn or over.
type offer struct {
	mu      sync.Mutex
	settled sync.Cond // the copying has ended
	phase   phase
	src     device.Buffer
	length  int
	stop    bool  // the sender wants the copying to end
	result  error // what came of it for the receiver; nil: it has all bytes
}

// phase is how far an offer has come.
type phase int

const (
	waiting   phase = iota // the memory is there to be copied
	copying                // the receiver is at it
	withdrawn              // the sender has taken it back
	over                   // the receiver is through with it, whatever came of it
)

func newOffer() *offer {
	o := &offer{}
	o.settled.L = &o.mu
	return o
}

// address is what the sender announces: that of the offer, not of the tensor,
// which may be on offer several times.
func (o *offer) address() uint64 { return uint64(uintptr(unsafe.Pointer(o))) }

// renew puts a tensor on an offer that is new or over.
func (o *offer) renew(src device.Buffer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.src, o.length = src, src.Len()
	o.phase, o.stop, o.result = waiting, false, nil
}

// size is the length of the tensor.
func (o *offer) size() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.length
}

// begin gives the receiver the memory; ok is false if the sender has withdrawn
// it.
func (o *offer) begin() (src device.Buffer, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.phase != waiting {
		return device.Buffer{}, false
	}
	o.phase = copying
	return o.src, true
}

// stopped reports whether the sender wants its memory back.
func (o *offer) stopped() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stop
}

// finish tells the sender that the receiver will not touch the memory any more,
// nor the offer.
func (o *offer) finish(result error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.phase, o.result, o.src = over, result, device.Buffer{}
	o.settled.Broadcast()
}

// withdraw returns when nobody touches the memory any more, which takes the
// time of a chunk at most.
func (o *offer) withdraw() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stop = true
	for o.phase == copying {
		o.settled.Wait()
	}
	if o.phase == waiting {
		o.phase, o.src = withdrawn, device.Buffer{}
	}
}

// outcome returns the result; ok is false while the receiver is not through.
func (o *offer) outcome() (result error, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.result, o.phase == over
}

// copied reports whether the receiver has all bytes.
func (o *offer) copied() bool {
	result, over := o.outcome()
	return over && result == nil
}
