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
// aborted: a peer that stops in the middle of a message would hold its memory without end.
const memoryWait = 10 * time.Second

// echoMemory bounds the messages of all pipes that are being received or are on their way
// back.
type echoMemory struct {
	bytes *budget.Budget
	wait  time.Duration

	mu   sync.Mutex
	held map[*pipe.Pipe]int
}

func newEchoMemory(bytes int) *echoMemory {
	return &echoMemory{bytes: budget.New(bytes), wait: memoryWait, held: map[*pipe.Pipe]int{}}
}

// acquire waits for n bytes for a message of p. It fails when p has ended.
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

// tryAcquire is acquire that does not wait.
func (m *echoMemory) tryAcquire(p *pipe.Pipe, n int) bool {
	ok := m.bytes.TryAcquire(n)
	if ok {
		m.add(p, n)
	}
	return ok
}

func (m *echoMemory) release(p *pipe.Pipe, n int) {
	m.add(p, -n)
	m.bytes.Release(n)
}

func (m *echoMemory) add(p *pipe.Pipe, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held[p] += n
	if m.held[p] == 0 {
		delete(m.held, p)
	}
}

// abortLargest aborts the pipe that holds most. One that was aborted before and has not
// released its memory yet does not count.
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
