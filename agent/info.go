package agent

import (
	"fmt"
	"strconv"
)

// WorkerInfo names one member of a group. It may travel as an argument.
type WorkerInfo struct {
	Name string
	Rank int // from 0 on, also called the worker's id
}

// String prints the form that PyTorch prints.
func (w WorkerInfo) String() string { return fmt.Sprintf("WorkerInfo(id=%d, name=%s)", w.Rank, w.Name) }

// To addresses the worker.
func (w WorkerInfo) To() To { return To(w.Name) }

// To is the destination of a call: the name of a worker, or what Rank or
// WorkerInfo.To return.
type To string

// rankMark begins a To that is a rank; no name can.
const rankMark = '#'

// Rank addresses the worker of that rank.
func Rank(n int) To { return To(string(rankMark) + strconv.Itoa(n)) }

// rank is the rank that t addresses, if it is none by name.
func (t To) rank() (int, bool) {
	if len(t) < 2 || t[0] != rankMark {
		return 0, false
	}
	n, err := strconv.Atoi(string(t[1:]))
	return n, err == nil
}
