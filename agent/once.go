package agent

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
)

// Once has a function run once for all requests of one caller that have the same key,
// as the attempts of a call WithRetry have, or calls that are Idempotent. A request
// that comes again while the function runs gets the same answer, and so does one that
// comes later: the answers to the last Limits.Remembered keys of each caller are kept,
// with all that they hold, which must not change. A run that fails after its caller has
// given up counts as none.
func Once() ServeOption { return func(s *Served) { s.entry.once = true } }

// keyHeader is the section of a request that has its key.
const keyHeader = "agent.key"

// memory is the answers that one caller got to requests with keys.
type memory struct {
	mu      sync.Mutex
	runs    map[runKey]*run
	settled fifo.Queue[runKey]
}

// runKey is what one run of a function is for.
type runKey struct{ typ, name, key string }

// run is one run of a function, and its answer.
type run struct {
	key     runKey
	over    bool
	values  []any // the answer, or
	err     error
	waiting []*Request // for the same answer
}

// enter reports whether r is to run, be it that all it does is to answer as another
// request was. If not, it gets the answer of one that still runs.
func (m *memory) enter(r *Request) bool {
	key := runKey{r.handler.typ, r.handler.name, r.key}
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.runs[key]
	if old == nil {
		r.once = &run{key: key}
		if m.runs == nil {
			m.runs = map[runKey]*run{}
		}
		m.runs[key] = r.once
		return true
	}
	if !old.over {
		r.stage.Store(uint32(ServedRepeated))
		old.waiting = append(old.waiting, r)
		return false
	}
	r.task = repeated{old}
	return true
}

// repeated is the task of a request that is answered as another one was.
type repeated struct{ run *run }

// Run answers the request. An error is the answer too.
func (t repeated) Run(_ context.Context, r *Request) {
	if t.run.err != nil {
		_ = r.Fail(t.run.err)
		return
	}
	_ = r.Reply(t.run.values...)
}

// settle keeps the answer to r, and gives it to those who wait for it. It returns who is
// to run instead where the answer counts for nothing.
func (m *memory) settle(r *Request, values []any, err error) (again *Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	own := r.once
	if err != nil && r.Err() != nil {
		if len(own.waiting) == 0 {
			delete(m.runs, own.key)
			return nil
		}
		again, own.waiting = own.waiting[0], own.waiting[1:]
		again.once = own
		return again
	}
	own.over, own.values, own.err = true, values, err
	for _, other := range own.waiting {
		other.task = repeated{own}
		go other.conn.launch(other, nil)
	}
	own.waiting = nil
	m.settled.Push(own.key)
	for m.settled.Len() > r.conn.agent.limits.Remembered {
		delete(m.runs, m.settled.Pop())
	}
	return nil
}

// remember is called with the answer to a request, before that is sent.
func (r *Request) remember(values []any, err error) {
	if r.once == nil {
		return
	}
	if again := r.conn.owner.memory.settle(r, slices.Clone(values), err); again != nil {
		go again.conn.launch(again, nil)
	}
}

// takeKey reads the key of a request whose handler runs once for each.
func (r *Request) takeKey() error {
	if !r.handler.once {
		return nil
	}
	key, _ := r.arrival.decoder.Header(keyHeader)
	if len(key) > maxName+1 {
		return fmt.Errorf("%w: a key of %d bytes", ErrProtocol, len(key))
	}
	r.key = string(key)
	return nil
}
