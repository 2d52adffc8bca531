package torch

import (
	"fmt"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// messageTypes maps PyTorch's names of messages to the message types for faulty.Rule. PyTorch calls
// functions of its own language by PYTHON messages, and operators and compiled functions, which are
// found by their names, by SCRIPT messages.
var messageTypes = map[string][]string{
	"PYTHON_CALL":                  {agent.TypeFunc},
	"SCRIPT_CALL":                  {agent.TypeInvoke, agent.TypeOp},
	"PYTHON_REMOTE_CALL":           {"rref.create.func"},
	"SCRIPT_REMOTE_CALL":           {"rref.create.invoke", "rref.create.op"},
	"PYTHON_RREF_FETCH_CALL":       {"rref.fetch"},
	"SCRIPT_RREF_FETCH_CALL":       {"rref.fetch"},
	"RREF_FORK_REQUEST":            {"rref.fork"},
	"RREF_CHILD_ACCEPT":            {"rref.accept"},
	"RREF_USER_DELETE":             {"rref.delete"},
	"BACKWARD_AUTOGRAD_REQ":        {"dist.backward"},
	"CLEANUP_AUTOGRAD_CONTEXT_REQ": {"dist.cleanup"},
}

// MessageTypes returns the message types that correspond to PyTorch's names of messages, such as
// "RREF_FORK_REQUEST", in the order of names. The error matches agent.ErrConfig if a name is unknown.
func MessageTypes(names ...string) ([]string, error) {
	var types []string
	for _, name := range names {
		found, ok := messageTypes[name]
		if !ok {
			return nil, fmt.Errorf("%w: No mapping to rpc::MessageType exists for %.100q", agent.ErrConfig, name)
		}
		types = append(types, slices.Clone(found)...)
	}
	return types, nil
}
