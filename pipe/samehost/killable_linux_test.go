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

// killableChild is a child that may be killed at some point of its run.
type killableChild struct {
	address chan string // of its listener; closed at the end of its output
	ended   chan exitInfo

	mu    sync.Mutex
	lines []string
}

// exitInfo describes how a killableChild ended.
type exitInfo struct {
	killed  bool
	dialled bool // it had dialled over TCP, if known
	points  int  // number of points that it passed, if known
	where   string
	at      time.Time
	err     error // of a child that was not killed
}

// starter starts a child that is killed at its n-th point, or never for n = 0.
type starter func(t *testing.T, childArgs string, n int) *killableChild

func newKillableChild() *killableChild {
	return &killableChild{address: make(chan string, 1), ended: make(chan exitInfo, 1)}
}

// readOutput appends the lines of from, the child's output, to m.lines until the output ends. It
// sends the address that the child prints to m.address, and closes m.address at the end.
func (m *killableChild) readOutput(from io.Reader) {
	defer close(m.address)
	for lines := bufio.NewScanner(from); lines.Scan(); {
		if url, ok := strings.CutPrefix(lines.Text(), address); ok {
			m.address <- url
		}
		m.mu.Lock()
		m.lines = append(m.lines, lines.Text())
		m.mu.Unlock()
	}
}

// printed returns the remainder of the first line of the child that begins with prefix, and true.
// If there is none so far, it returns "" and false.
func (m *killableChild) printed(prefix string) (rest string, found bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, line := range m.lines {
		if rest, found = strings.CutPrefix(line, prefix); found {
			return rest, true
		}
	}
	return "", false
}

func environment(childArgs string, more ...string) []string {
	return append(append(os.Environ(), childVar+"="+childArgs, noExitDelay), more...)
}
