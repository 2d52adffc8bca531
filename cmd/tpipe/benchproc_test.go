package main

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// pollInterval is how often processes are looked for, which send no event.
const pollInterval = 5 * time.Millisecond

// firstChild is a process that pid has started, 0 if there is none.
func firstChild(pid int) int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	for _, e := range entries {
		var id int
		if _, err := fmt.Sscan(e.Name(), &id); err != nil {
			continue
		}
		if _, parent := processState(id); parent == pid {
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
