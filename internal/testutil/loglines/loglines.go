// Package loglines records log output for tests that read it while other goroutines write.
package loglines

import (
	"log/slog"
	"strings"
	"sync"
)

// Lines is recorded log output. The zero value is empty and ready to use. All methods may be called
// concurrently.
type Lines struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write appends p to the log. It never fails.
func (l *Lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns everything that was logged so far.
func (l *Lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Logger returns a logger that writes to l as text, from slog.LevelInfo on.
func (l *Lines) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }
