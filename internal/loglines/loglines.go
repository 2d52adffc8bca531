// Package loglines keeps what is logged, for tests that read it while others still
// write.
package loglines

import (
	"log/slog"
	"strings"
	"sync"
)

// Lines is a log as text. The zero value is empty. All methods may be called from any
// goroutine.
type Lines struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write adds to the log.
func (l *Lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String is all that was logged so far.
func (l *Lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Logger logs to l, from slog.LevelInfo on.
func (l *Lines) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }
