package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// screen shows the progress of transfers: lines on stdout and, on a terminal, a progress bar for all
// active transfers together below them. Its methods may be called concurrently.
type screen struct {
	out io.Writer // nil: no lines
	err io.Writer
	bar bool // err is a terminal that shows the progress bar

	mu           sync.Mutex
	total, moved int // bytes of the transfers under way
	since        time.Time
	drawn        time.Time
}

// newScreen returns a screen on the standard streams s, without lines if quiet or json is set, and
// without a bar if quiet is set.
func newScreen(s streams, quiet, json bool) *screen {
	sc := &screen{out: s.out, err: s.err, bar: isTerminal(s.err) && !quiet}
	if quiet || json {
		sc.out = nil
	}
	return sc
}

// print prints text to stdout, or nothing if stdout is reserved for JSON or the user asked for errors
// only.
func (s *screen) print(text string) {
	if s.out != nil {
		s.printAbove(s.out, text)
	}
}

// warn prints a line to stderr.
func (s *screen) warn(text string) { s.printAbove(s.err, text+"\n") }

// printAbove removes the progress bar and prints text to w in its place. The next call of advance draws
// the bar again.
func (s *screen) printAbove(w io.Writer, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
	fmt.Fprint(w, text)
}

// clear removes the progress bar from the terminal. The caller holds s.mu.
func (s *screen) clear() {
	if s.bar && !s.drawn.IsZero() {
		fmt.Fprint(s.err, "\r\x1b[K")
		s.drawn = time.Time{}
	}
}

// addTotal adds the bytes of a transfer that starts to the total of the bar.
func (s *screen) addTotal(bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.total == 0 {
		s.since = time.Now()
	}
	s.total += bytes
}

// advance adds bytes that a transfer has moved, and draws the bar if the last drawing is old enough.
func (s *screen) advance(bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moved += bytes
	if s.bar && time.Since(s.drawn) >= refresh {
		s.drawn = time.Now()
		fmt.Fprint(s.err, "\r\x1b[K"+bar(s.moved, s.total, time.Since(s.since)))
	}
}

// remove subtracts a transfer that has ended from the bar. total is the argument of its call of
// addTotal, and moved the sum of the arguments of its calls of advance. remove erases the bar until the
// next call of advance.
func (s *screen) remove(total, moved int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total -= total
	s.moved -= moved
	s.clear()
}

// barWidth leaves space for the figures on 80 columns.
const barWidth = 24

// bar returns the progress bar as text, after moved of total bytes were moved in the time took.
func bar(moved, total int, took time.Duration) string {
	done := float64(moved) / float64(max(total, 1))
	full := int(done * barWidth)
	text := fmt.Sprintf("[%s%s] %3.0f%%  %s of %s  %s", strings.Repeat("=", full), strings.Repeat(" ", barWidth-full),
		100*done, byteSize(moved), byteSize(total), rate(moved, took))
	if moved > 0 && took > time.Second {
		left := time.Duration(float64(took) * (1 - done) / done).Round(time.Second)
		text += fmt.Sprintf("  %s left", left)
	}
	return text
}

// progress shows on a terminal how many steps of a command are done. On other outputs it shows nothing.
type progress struct {
	w     io.Writer // nil: not a terminal
	total int
	shown time.Time
}

// refresh is the shortest time between two updates of a progress display.
const refresh = 100 * time.Millisecond

// newProgress returns a progress of total steps that is shown on w.
func newProgress(w io.Writer, total int) *progress {
	if !isTerminal(w) {
		w = nil
	}
	return &progress{w: w, total: total, shown: time.Now()}
}

// isTerminal reports whether w is a terminal. The null device, which is a character device too, is not
// a terminal.
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

// at shows that n steps are done, unless the last update is too recent.
func (p *progress) at(n int) {
	if p.w == nil || time.Since(p.shown) < refresh {
		return
	}
	p.shown = time.Now()
	fmt.Fprintf(p.w, "\r%d of %d", n, p.total)
}

// clear removes the line from the terminal.
func (p *progress) clear() {
	if p.w != nil {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
