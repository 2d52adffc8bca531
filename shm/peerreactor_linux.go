package shm

import (
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/deadline"
	"github.com/tensorpipe-go/tensorpipe/shm/internal/ring"
)

// triggerSize is the size of a trigger in bytes.
const triggerSize = 4

// peerReactor sends triggers to the reactor of the peer's process, through a ring of that process
// which its other peers write to as well. One end of a connection uses it, and close unmaps the
// ring.
type peerReactor struct {
	memory memory

	mu          sync.Mutex
	producer    *ring.Producer
	buf         [triggerSize]byte
	put         func() error // writes buf to the ring; called within the guard of memory
	unreachable func() bool  // reports that no trigger is needed any more
	inbox       uint32       // trigger to send after a write to the peer's inbox
	outbox      uint32       // trigger to send after a read from this end's inbox
}

func newPeerReactor(m memory, triggers [2]uint32, unreachable func() bool) *peerReactor {
	l := &peerReactor{memory: m, producer: m.ring.Producer(), unreachable: unreachable, inbox: triggers[0], outbox: triggers[1]}
	l.put = func() error {
		if err := l.producer.Begin(); err != nil {
			return err
		}
		if err := l.producer.WriteAll(l.buf[:]); err != nil {
			l.producer.Cancel()
			return err
		}
		return l.producer.Commit()
	}
	return l
}

// spinAttempts is how often a trigger is tried before the caller sleeps between attempts, and
// maxSleep bounds such a sleep.
const (
	spinAttempts = 1000
	maxSleep     = 32 * time.Millisecond
)

// send sends a trigger. While the ring for triggers is full, or another writer uses it, send tries
// again, at first without pause and then at growing intervals: C++ writers poll without pause, so
// the peer gives no notice of space. In that state it returns nil, without having sent the trigger,
// once the connection's peer is unreachable, and os.ErrDeadlineExceeded once d has passed. It also
// returns nil if the ring is corrupt. The error matches segment.ErrFault if the peer has truncated
// the ring. A wake-up of b ends an interval early; if that happened, send wakes b again when it
// returns, for the caller's next wait.
func (l *peerReactor) send(trigger uint32, d *deadline.Deadline, b wakeup) error {
	rung := false
	defer func() {
		if rung {
			b.wake() // also for the caller's next wait
		}
	}()
	sleep := time.Millisecond
	for try := 1; ; try++ {
		err := l.trySend(trigger)
		if errors.Is(err, ring.ErrCorrupt) {
			return nil // another peer may have broken the ring; a peer of this package then polls without triggers
		}
		if !errors.Is(err, ring.ErrBusy) && !errors.Is(err, ring.ErrShort) {
			return err
		}
		if l.unreachable() {
			return nil
		}
		if d.Passed() {
			return os.ErrDeadlineExceeded
		}
		if try < spinAttempts {
			runtime.Gosched()
			continue
		}
		rung = b.await(sleep) || rung
		sleep = min(2*sleep, maxSleep)
	}
}

// trySend writes a trigger to the ring of the peer's reactor if it can do so at once, and returns
// nil. It returns ring.ErrShort if the ring is full, ring.ErrBusy if another writer uses it, and an
// error that matches ring.ErrCorrupt or segment.ErrFault if the peer has broken it.
func (l *peerReactor) trySend(trigger uint32) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	binary.NativeEndian.PutUint32(l.buf[:], trigger)
	return l.memory.guard(l.put)
}

func (l *peerReactor) close() { l.memory.close() }
