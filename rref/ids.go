package rref

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// forkID identifies one reference of one worker to a value. It is random, and known only to the
// worker that has the reference, to its owner, and to the worker from which it came: who knows it may
// fetch the value and share the reference.
type forkID [16]byte

func newForkID() (id forkID) {
	_, _ = rand.Read(id[:]) // never fails
	return id
}

func (id forkID) String() string { return hex.EncodeToString(id[:]) }

// Label names a reference, or a value, in texts: the rank of the worker that made it, and a number
// that this worker has counted. Labels are unique within a group as long as ranks are not used again.
type Label struct {
	CreatedOn int
	Local     uint64
}

// String returns the label as "CREATED_ON.LOCAL", such as "0.12".
func (l Label) String() string { return fmt.Sprintf("%d.%d", l.CreatedOn, l.Local) }

// worker is one incarnation of a worker.
type worker struct {
	_           struct{} `tensorpipe:"rref.worker"`
	Name        string
	Rank        int
	Incarnation [16]byte
}

func (w worker) info() agent.WorkerInfo { return agent.WorkerInfo{Name: w.Name, Rank: w.Rank} }
