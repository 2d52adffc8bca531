package interop

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync"
	"time"
)

// errNoLine is the error of lines.next after its timeout.
var errNoLine = errors.New("timeout: it printed no line")

// lines buffers the output of a process and returns it line by line. The buffer is unbounded, so that
// the process never blocks on it. All methods may be called concurrently.
type lines struct {
	mu      sync.Mutex
	text    []byte
	closed  bool
	changed chan struct{} // closed and replaced by each Write and by close
}

func newLines() *lines { return &lines{changed: make(chan struct{})} }

// Write implements [io.Writer]. It appends a copy of p to the buffered output, wakes calls of next
// that wait, and returns len(p) and nil.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	l.wake()
	return len(p), nil
}

func (l *lines) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.wake()
}

func (l *lines) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// next removes the oldest whole line from the buffer and returns it without its newline. It waits
// for such a line up to timeout, and then returns errNoLine. If the output has ended and no whole
// line is left, it returns io.EOF.
func (l *lines) next(timeout time.Duration) (string, error) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		line, changed, err := l.take()
		if changed == nil {
			return line, err
		}
		select {
		case <-changed:
		case <-timer.C:
			return "", errNoLine
		}
	}
}

// take removes the oldest whole line from the buffer and returns it without its newline; changed is
// nil then. If there is none and the output has ended, it returns io.EOF, and changed is nil.
// Otherwise line is "", err is nil, and changed is a channel that is closed when output is added or
// ends.
func (l *lines) take() (line string, changed <-chan struct{}, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if end := bytes.IndexByte(l.text, '\n'); end >= 0 {
		line = string(l.text[:end])
		l.text = l.text[end+1:]
		return line, nil, nil
	}
	if l.closed {
		return "", nil, io.EOF
	}
	return "", l.changed, nil
}

// remaining returns the buffered output that next has not returned, without white space at both
// ends. It leaves the output in the buffer.
func (l *lines) remaining() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(string(l.text))
}
