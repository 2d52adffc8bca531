package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/budget"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// memoryWait is how long a message waits for memory before the pipe that holds most is
// aborted. Without it a peer that stops in the middle of a message would hold its memory forever.
const memoryWait = 10 * time.Second

// echoMemory bounds the bytes of the messages that all pipes are receiving or sending back. Its methods
// may be called concurrently.
type echoMemory struct {
	bytes *budget.Budget
	wait  time.Duration

	mu   sync.Mutex
	held map[*pipe.Pipe]int
}

// newEchoMemory returns an echoMemory of which all pipes together may hold up to the given number
// of bytes.
func newEchoMemory(bytes int) *echoMemory {
	return &echoMemory{bytes: budget.New(bytes), wait: memoryWait, held: map[*pipe.Pipe]int{}}
}

// acquire blocks until n bytes are available, and counts them as held by p. Each time it has waited
// for m.wait, it aborts the pipe that holds most bytes, which may be p. If p ends while acquire
// waits, it returns p's error and counts nothing.
func (m *echoMemory) acquire(p *pipe.Pipe, n int) error {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), m.wait)
		ok := m.bytes.Acquire(ctx, p.Done(), n)
		cancel()
		if ok {
			m.add(p, n)
			return nil
		}
		if err := p.Err(); err != nil {
			return err
		}
		m.abortLargest()
	}
}

// tryAcquire counts n bytes as held by p and returns true if they are available now and no call of
// acquire waits. Otherwise it counts nothing and returns false. It does not block.
func (m *echoMemory) tryAcquire(p *pipe.Pipe, n int) bool {
	ok := m.bytes.TryAcquire(n)
	if ok {
		m.add(p, n)
	}
	return ok
}

// release gives back n bytes that p holds, so that waiting calls of acquire can get them.
func (m *echoMemory) release(p *pipe.Pipe, n int) {
	m.add(p, -n)
	m.bytes.Release(n)
}

// add adds n, which may be negative, to the number of bytes that p holds. It does not change the
// number of bytes that are available. It locks m.mu.
func (m *echoMemory) add(p *pipe.Pipe, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held[p] += n
	if m.held[p] == 0 {
		delete(m.held, p)
	}
}

// abortLargest aborts the pipe that holds most bytes, with an error that matches pipe.ErrLimit.
// Pipes that have ended are not considered, even if they still hold bytes. It does nothing if no
// pipe is left.
func (m *echoMemory) abortLargest() {
	m.mu.Lock()
	defer m.mu.Unlock()
	var largest *pipe.Pipe
	for p, n := range m.held {
		if p.Err() == nil && (largest == nil || n > m.held[largest]) {
			largest = p
		}
	}
	if largest != nil {
		largest.Abort(fmt.Errorf("%w: others have waited %s for memory, and the messages of this pipe hold most of the -memory", pipe.ErrLimit, m.wait))
	}
}
