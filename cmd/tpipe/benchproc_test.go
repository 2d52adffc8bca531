package main

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// pollInterval is how often processes are looked for, which send no event.
const pollInterval = 5 * time.Millisecond

// benchChildOf is the second process of the bench that is pid, 0 if there is
// none. Programs in Go also have other children, for moments.
func benchChildOf(pid int) int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	for _, e := range entries {
		var id int
		if _, err := fmt.Sscan(e.Name(), &id); err != nil {
			continue
		}
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", id))
		if _, parent := processState(id); parent == pid && strings.Contains(string(line), benchChildName) {
			return id
		}
	}
	return 0
}

// isRunning is false also of a process that has ended and that nobody has
// asked about.
func isRunning(pid int) bool {
	state, _ := processState(pid)
	return state != "" && state != "Z"
}

// processState reads /proc: the state is empty if there is no such process.
func processState(pid int) (state string, parent int) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0
	}
	_, behindName, _ := strings.Cut(string(text), ") ")
	_, _ = fmt.Sscan(behindName, &state, &parent)
	return state, parent
}
