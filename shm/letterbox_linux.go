package shm

import (
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/ring"
)

// tokenSize is the length of a token in a reactor's ring.
const tokenSize = 4

// letterbox is the reactor of a peer, where others leave tokens too.
type letterbox struct {
	memory memory

	mu     sync.Mutex
	posts  *ring.Producer
	letter [tokenSize]byte
	put    func() error
	alone  func() bool // nobody would read it
	inbox  uint32      // the tokens of the peer
	outbox uint32
}

func newLetterbox(m memory, tokens [2]uint32, alone func() bool) *letterbox {
	l := &letterbox{memory: m, posts: m.ring.Producer(), alone: alone, inbox: tokens[0], outbox: tokens[1]}
	l.put = l.offer
	return l
}

// attempts is how often a token is offered before the caller sleeps, and longestSleep
// how long he does so at most before he offers it again.
const (
	attempts     = 1000
	longestSleep = 32 * time.Millisecond
)

// leave leaves a token. Where the ring is full, as with a peer that was stopped, or
// others are at it, it waits until the deadline, which rings b as all does that ends
// the wait, but for the peer. That one makes room without a word, being made for
// writers that look all the time: who sleeps has to look again, at growing intervals.
func (l *letterbox) leave(token uint32, d *deadline, b bell) error {
	rung := false
	defer func() {
		if rung {
			b.ring() // for what the caller waits for next
		}
	}()
	sleep := time.Millisecond
	for try := 1; ; try++ {
		err := l.post(token)
		if errors.Is(err, ring.ErrCorrupt) {
			return nil // others may have broken it, and an end of ours looks without tokens then
		}
		if !errors.Is(err, ring.ErrBusy) && !errors.Is(err, ring.ErrShort) {
			return err
		}
		if l.alone() {
			return nil
		}
		if d.expired() {
			return os.ErrDeadlineExceeded
		}
		if try < attempts {
			runtime.Gosched()
			continue
		}
		rung = b.heard(sleep) || rung
		sleep = min(2*sleep, longestSleep)
	}
}

// post leaves a token if there is room.
func (l *letterbox) post(token uint32) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	binary.NativeEndian.PutUint32(l.letter[:], token)
	return l.memory.guard(l.put)
}

// offer leaves the letter if there is room.
func (l *letterbox) offer() error {
	if err := l.posts.Begin(); err != nil {
		return err
	}
	if err := l.posts.WriteAll(l.letter[:]); err != nil {
		l.posts.Cancel()
		return err
	}
	return l.posts.Commit()
}

func (l *letterbox) close() { l.memory.close() }
