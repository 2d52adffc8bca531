package agent

import "sync/atomic"

// reader is what Close knows of those who take in what comes by a pipe. Functions of
// the application may run there: those that are Short, interceptors, and what opens
// requests. One of them may call Close itself, which therefore waits for none.
type reader struct {
	busy    atomic.Int32 // messages that are being seen to
	excused atomic.Bool  // Close waits for the goroutine no more
}

// excuse has Close not wait, or wait no more, for the goroutine that reads.
func (c *conn) excuse() {
	if !c.reader.excused.Swap(true) {
		c.agent.work.Done()
	}
}

// awaitWork waits for what the agent itself runs. No reader sees to another message from
// now on.
func (a *Agent) awaitWork() {
	a.conns.Range(func(key, _ any) bool {
		if c := key.(*conn); c.reader.busy.Load() > 0 {
			c.excuse()
		}
		return true
	})
	a.work.Wait()
}
