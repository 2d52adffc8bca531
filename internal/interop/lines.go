package interop

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync"
	"time"
)

// errSilent is returned where a line was waited for too long.
var errSilent = errors.New("it printed nothing for too long")

// lines takes what a process prints and gives it out by the line. It keeps
// everything, so that the process never waits for its reader.
type lines struct {
	mu      sync.Mutex
	text    []byte
	closed  bool
	changed chan struct{} // closed and replaced when something came
}

func newLines() *lines { return &lines{changed: make(chan struct{})} }

// Write never fails.
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

// next waits for a whole line and takes it, without its end. It returns io.EOF
// when no more will come.
func (l *lines) next(patience time.Duration) (string, error) {
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		line, changed, err := l.take()
		if changed == nil {
			return line, err
		}
		select {
		case <-changed:
		case <-timeout.C:
			return "", errSilent
		}
	}
}

// take returns a line or io.EOF, or else a channel that is closed when it is
// worth looking again.
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

// rest is all that was not taken.
func (l *lines) rest() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(string(l.text))
}
