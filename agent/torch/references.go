package torch

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// referenceError is implemented by the errors of package rref that PyTorch has too. This package must
// not import that one.
type referenceError interface {
	error

	// ReferenceFault returns the kind of the error. If it is about one reference, it also returns the
	// label of the value and that of the reference, such as "0.3", this worker, and the owner.
	ReferenceFault() (kind, value, fork string, self, owner agent.WorkerInfo)
}

// referenceText returns PyTorch's text for e and true, or false if PyTorch has no such error.
func referenceText(e referenceError) (string, bool) {
	kind, value, fork, self, owner := e.ReferenceFault()
	switch kind {
	case "no agent":
		return "Current RPC agent is not set! Did you initialize the RPC framework (e.g. by calling `rpc.init_rpc`)?", true
	case "creation":
		if unsent := (*agent.DeviceError)(nil); errors.As(e, &unsent) {
			return "", false // in PyTorch it is the error of rpc.remote, which sends nothing
		}
		return "RRef creation via rpc.remote() timed out, and it is possible that the RRef on the owner node does not exist.", true
	case "encoding":
		return "Can not pickle rref in python pickler", true
	case "leak":
		return "Leaking RRef", true
	case "released fetch":
		return reference(false, value, fork) + " has been deleted. Cannot call to_here() on it after deletion.", true
	case "released share":
		return reference(false, value, fork) + " has been deleted. Cannot call fork an UserRRef after deletion.", true
	case "not owner":
		return fmt.Sprintf("For UserRRef(rref_id=%s, fork_id=%s), can't call localValue() on user %s. Call it on owner %s",
			uniqueID(value), uniqueID(fork), WorkerInfo(self), WorkerInfo(owner)), true
	}
	return "", false
}

// Reference returns the text that PyTorch prints for a remote reference with the labels of its value
// and of itself, of which the texts are as those of rref.Label.
func Reference(isOwner bool, value, fork fmt.Stringer) string {
	return reference(isOwner, value.String(), fork.String())
}

func reference(isOwner bool, value, fork string) string {
	if isOwner {
		return "OwnerRRef(" + uniqueID(value) + ")"
	}
	return "UserRRef(RRefId = " + uniqueID(value) + ", ForkId = " + uniqueID(fork) + ")"
}

func uniqueID(label string) string {
	worker, number, _ := strings.Cut(label, ".")
	return "GloballyUniqueId(created_on=" + worker + ", local_id=" + number + ")"
}

// ReferenceInfo returns the metrics of r, the *rref.Refs of a worker, as a new map from PyTorch's names
// to decimal numbers. PyTorch counts the values of a worker from the moment on at which another worker
// refers to them.
func ReferenceInfo(r interface {
	Metrics() map[string]int64
	SharedValues() int
}) map[string]string {
	m := r.Metrics()
	return map[string]string{
		"num_owner_rrefs":   strconv.Itoa(r.SharedValues()),
		"num_forks":         strconv.FormatInt(m["forks"], 10),
		"num_pending_users": strconv.FormatInt(m["pending_users"], 10),
	}
}
