package samehost_test

import (
	"bufio"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// mortal is a child that may die at a point of its life.
type mortal struct {
	address chan string // closed when no more will come
	ended   chan ending

	mu   sync.Mutex
	said []string
}

// ending is how a mortal ended.
type ending struct {
	killed  bool
	dialled bool // it had a connection over TCP, as far as is known
	points  int  // those it came by, as far as is known
	where   string
	at      time.Time
	err     error // of one that lived to the end
}

// executioner starts a child that dies at the n-th point; 0 is never.
type executioner func(t *testing.T, part string, n int) *mortal

func newMortal() *mortal {
	return &mortal{address: make(chan string, 1), ended: make(chan ending, 1)}
}

// hear takes in what it says, to the end.
func (m *mortal) hear(from io.Reader) {
	defer close(m.address)
	for lines := bufio.NewScanner(from); lines.Scan(); {
		if url, ok := strings.CutPrefix(lines.Text(), address); ok {
			m.address <- url
		}
		m.mu.Lock()
		m.said = append(m.said, lines.Text())
		m.mu.Unlock()
	}
}

// hasSaid returns what followed some words, if they were said.
func (m *mortal) hasSaid(words string) (rest string, said bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, line := range m.said {
		if rest, said = strings.CutPrefix(line, words); said {
			return rest, true
		}
	}
	return "", false
}

func environment(part string, more ...string) []string {
	return append(append(os.Environ(), partVar+"="+part, prompt), more...)
}
