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

// Write implements [io.Writer]. It appends a copy of p to the recorded output and returns len(p)
// and nil.
func (l *Lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns all output that was recorded so far. It removes nothing.
func (l *Lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Logger returns a new logger that writes records of slog.LevelInfo and above to l, in slog's text
// form.
func (l *Lines) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }
