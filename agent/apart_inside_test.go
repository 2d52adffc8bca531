package agent

import (
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
)

// goroutine names the one that calls it.
func goroutine() string {
	buf := make([]byte, 64)
	name, _, _ := strings.Cut(string(buf[:runtime.Stack(buf, false)]), "[")
	return name
}

// TestHandlerRunsWhereItCame: what takes long runs on the goroutine that has read it, where
// nobody waits for that, and elsewhere where somebody does.
func TestHandlerRunsWhereItCame(t *testing.T) {
	runs := func(s *shift) string {
		at := make(chan string, 1)
		s.apart(func() { at <- goroutine() })
		if s != nil && s.then != nil {
			assert.Empty(t, at, "before the shift is over")
			s.handOver()
		}
		return <-at
	}
	here := goroutine()
	assert.NotEqual(t, here, runs(nil))
	var lead sync.Mutex
	assert.NotEqual(t, here, runs(&shift{lock: &lead}), "who looks for his answer")
	assert.Equal(t, here, runs(&shift{over: true}), "another one reads on")

	s := &shift{over: true}
	at := make(chan string, 1)
	s.apart(func() {})
	s.apart(func() { at <- goroutine() })
	assert.NotEqual(t, here, <-at, "one that has something to do")
}
