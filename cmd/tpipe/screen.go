package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// screen is where transfers show how far they have come: lines on stdout, and
// below them, on a terminal, a bar for all transfers under way. It may be used
// by several goroutines.
type screen struct {
	out   io.Writer // nil: no lines
	err   io.Writer
	errIs bool // a terminal, for the bar

	mu           sync.Mutex
	total, moved int // bytes of the transfers under way
	since        time.Time
	drawn        time.Time
}

func newScreen(s streams, quiet, json bool) *screen {
	sc := &screen{out: s.out, err: s.err, errIs: isTerminal(s.err) && !quiet}
	if quiet || json {
		sc.out = nil
	}
	return sc
}

// print prints to stdout, unless that is for others.
func (s *screen) print(text string) {
	if s.out != nil {
		s.above(s.out, text)
	}
}

// warn prints a line to stderr.
func (s *screen) warn(text string) { s.above(s.err, text+"\n") }

// above prints where the bar is, which will be drawn again below.
func (s *screen) above(w io.Writer, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
	fmt.Fprint(w, text)
}

func (s *screen) clear() {
	if s.errIs && !s.drawn.IsZero() {
		fmt.Fprint(s.err, "\r\x1b[K")
		s.drawn = time.Time{}
	}
}

// expect adds a transfer of so many bytes.
func (s *screen) expect(bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.total == 0 {
		s.since = time.Now()
	}
	s.total += bytes
}

// advance moves the bar.
func (s *screen) advance(bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moved += bytes
	if s.errIs && time.Since(s.drawn) >= refresh {
		s.drawn = time.Now()
		fmt.Fprint(s.err, "\r\x1b[K"+bar(s.moved, s.total, time.Since(s.since)))
	}
}

// forget takes a transfer out that has ended, of which so much had moved.
func (s *screen) forget(total, moved int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total -= total
	s.moved -= moved
	s.clear()
}

// barWidth leaves room for the figures on 80 columns.
const barWidth = 24

// bar says how far a transfer has come.
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
