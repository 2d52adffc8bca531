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

// Write appends p to the output. It implements io.Writer and never fails.
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

// next removes the oldest line and returns it without its newline. It blocks until there is a whole
// line, and returns io.EOF at the end of the output, and errNoLine after the timeout.
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

// take removes the oldest whole line and returns it, or io.EOF at the end of the output. If there is
// neither yet it returns a channel that is closed at the next change; otherwise changed is nil.
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

// remaining returns the output that next has not returned, without space at its ends. It removes
// nothing.
func (l *lines) remaining() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(string(l.text))
}
