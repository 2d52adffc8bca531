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

// newScreen returns a screen that prints lines to s.out and draws a progress bar on s.err. It
// prints no lines if quiet or json is true. It draws no bar if quiet is true or s.err is not a
// terminal.
func newScreen(s streams, quiet, json bool) *screen {
	sc := &screen{out: s.out, err: s.err, bar: isTerminal(s.err) && !quiet}
	if quiet || json {
		sc.out = nil
	}
	return sc
}

// print prints text to stdout, in place of the progress bar. It does nothing if the screen prints
// no lines because of -quiet or -json.
func (s *screen) print(text string) {
	if s.out != nil {
		s.printAbove(s.out, text)
	}
}

// warn prints text and a line break to stderr, in place of the progress bar, also with -quiet and
// -json.
func (s *screen) warn(text string) { s.printAbove(s.err, text+"\n") }

// printAbove erases the progress bar and prints text to w in its place. A later call of advance
// draws the bar again, below text. printAbove ignores errors of writing, and locks s.mu.
func (s *screen) printAbove(w io.Writer, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
	fmt.Fprint(w, text)
}

// clear erases the progress bar from the terminal if it is drawn. The caller holds s.mu.
func (s *screen) clear() {
	if s.bar && !s.drawn.IsZero() {
		fmt.Fprint(s.err, "\r\x1b[K")
		s.drawn = time.Time{}
	}
}

// addTotal adds the bytes that a new transfer will move to the total of the progress bar. It draws
// nothing. If the total was 0, the time that the bar shows begins now.
func (s *screen) addTotal(bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.total == 0 {
		s.since = time.Now()
	}
	s.total += bytes
}

// advance adds the given number of moved bytes to the progress bar. If the screen has a bar,
// advance draws it, unless the bar on the terminal was drawn less than 100 ms ago.
func (s *screen) advance(bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moved += bytes
	if s.bar && time.Since(s.drawn) >= refresh {
		s.drawn = time.Now()
		fmt.Fprint(s.err, "\r\x1b[K"+bar(s.moved, s.total, time.Since(s.since)))
	}
}

// remove removes a transfer that has ended from the progress bar. total is the number of bytes that
// the transfer has passed to addTotal, and moved the sum of those that it has passed to advance.
// remove also erases the bar, until a call of advance draws it again.
func (s *screen) remove(total, moved int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total -= total
	s.moved -= moved
	s.clear()
}

// barWidth leaves space for the figures on 80 columns.
const barWidth = 24

// bar returns the text of a progress bar after moved of total bytes were moved in the time took: a
// bar, the percentage, both numbers and the rate. If moved is not 0 and took is more than a second,
// it also contains the time left.
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

// newProgress returns a progress of total steps that is drawn on w if w is a terminal, and
// otherwise not at all. Nothing is drawn yet.
func newProgress(w io.Writer, total int) *progress {
	if !isTerminal(w) {
		w = nil
	}
	return &progress{w: w, total: total, shown: time.Now()}
}

// isTerminal reports whether w is an *os.File that is a character device other than the null
// device. It takes every such file for a terminal.
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

// at draws that n steps are done. It does nothing if the output is not a terminal, or if the last
// drawing, or the creation of p, is less than 100 ms ago.
func (p *progress) at(n int) {
	if p.w == nil || time.Since(p.shown) < refresh {
		return
	}
	p.shown = time.Now()
	fmt.Fprintf(p.w, "\r%d of %d", n, p.total)
}

// clear erases the progress from the terminal. It does nothing if the output is not a terminal.
func (p *progress) clear() {
	if p.w != nil {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
