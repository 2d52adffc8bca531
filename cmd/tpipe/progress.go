package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

// progress shows on a terminal how far a command has come; elsewhere it shows
// nothing.
type progress struct {
	w     io.Writer // nil: not a terminal
	total int
	shown time.Time
}

// refresh is how often a person wants to see the number change.
const refresh = 100 * time.Millisecond

func newProgress(w io.Writer, total int) *progress {
	if !isTerminal(w) {
		w = nil
	}
	return &progress{w: w, total: total, shown: time.Now()}
}

// isTerminal tells terminals from files and pipes. The null device looks like a
// terminal otherwise.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}

func (p *progress) at(n int) {
	if p.w == nil || time.Since(p.shown) < refresh {
		return
	}
	p.shown = time.Now()
	fmt.Fprintf(p.w, "\r%d of %d", n, p.total)
}

// clear wipes the line.
func (p *progress) clear() {
	if p.w != nil {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
