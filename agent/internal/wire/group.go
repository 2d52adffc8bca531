package wire

import "github.com/tensorpipe-go/tensorpipe/tensor"

// GroupType is the type of the requests by which the workers of a round send their contributions
// to the leader, the worker with the lowest rank. The leader replies when all have arrived.
const GroupType = "agent.group"

// GroupRequest is the contribution of one worker to a round.
type GroupRequest struct {
	_       struct{}   `tensorpipe:"agent.groupRequest"`
	Op      string     // the operation; rounds of different operations are independent
	Seq     uint64     // number of the round
	Members []Identity // by rank
	Value   Packed
}

// GroupReply is the result of a round.
type GroupReply struct {
	_       struct{} `tensorpipe:"agent.groupReply"`
	Failure *GroupFailure
	Values  []Packed // in the order of the members
}

// Packed is an encoded value, which the leader passes on without decoding it.
type Packed struct {
	_       struct{} `tensorpipe:"agent.packed"`
	Data    []byte
	Tensors []*tensor.Tensor // its storages, as bytes
}

// GroupFailure is the reason for which a round failed.
type GroupFailure struct {
	_      struct{} `tensorpipe:"agent.groupFailure"`
	Code   GroupCode
	Worker string // the worker that caused the failure
	Text   string
}

// GroupCode is the kind of a GroupFailure.
type GroupCode byte

// The kinds of failures.
const (
	GroupUnreachable GroupCode = 1 + iota
	GroupRestarted
	GroupCanceled
	GroupTimeout
)

// Workload is the activity of a worker, which the workers of a static group contribute before
// they shut down.
type Workload struct {
	_      struct{} `tensorpipe:"agent.workload"`
	Begun  int64    // calls begun so far
	Active int64    // pending calls and handlers
}
