package torch_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/torch"
)

// fault is an error of a remote reference.
type fault string

func (f fault) Error() string { return "fault " + string(f) }

func (f fault) ReferenceFault() (kind, value, fork string, self, owner agent.WorkerInfo) {
	return string(f), "0.3", "2.4", agent.WorkerInfo{Name: "a", Rank: 2}, agent.WorkerInfo{Name: "b", Rank: 1}
}

func TestReferenceErrors(t *testing.T) {
	const deleted = "UserRRef(RRefId = GloballyUniqueId(created_on=0, local_id=3), ForkId = GloballyUniqueId(created_on=2, local_id=4)) has been deleted. "
	for kind, want := range map[fault]string{
		"no agent":       "Current RPC agent is not set! Did you initialize the RPC framework (e.g. by calling `rpc.init_rpc`)?",
		"creation":       "RRef creation via rpc.remote() timed out, and it is possible that the RRef on the owner node does not exist.",
		"encoding":       "Can not pickle rref in python pickler",
		"leak":           "Leaking RRef",
		"released fetch": deleted + "Cannot call to_here() on it after deletion.",
		"released share": deleted + "Cannot call fork an UserRRef after deletion.",
		"not owner": "For UserRRef(rref_id=GloballyUniqueId(created_on=0, local_id=3), fork_id=GloballyUniqueId(created_on=2, local_id=4)), " +
			"can't call localValue() on user WorkerInfo(id=2, name=a). Call it on owner WorkerInfo(id=1, name=b)",
		"other": "fault other",
	} {
		require.Equal(t, want, torch.Error(kind))
		require.Equal(t, "x: "+want, torch.Error(fmt.Errorf("x: %w", errors.Join(kind))))
	}
}

// unsentFault is the error of a reference whose creation was not sent.
type unsentFault struct{ fault }

func (unsentFault) Error() string { return "fault: " + (&agent.DeviceError{}).Error() }
func (unsentFault) Unwrap() error { return &agent.DeviceError{} }

func TestUnsentCreation(t *testing.T) {
	require.Equal(t, "fault: "+torch.Error(&agent.DeviceError{}), torch.Error(unsentFault{"creation"}))
}

// label is the label of a value or of a reference.
type label string

func (l label) String() string { return string(l) }

func TestReference(t *testing.T) {
	require.Equal(t, "OwnerRRef(GloballyUniqueId(created_on=1, local_id=20))", torch.Reference(true, label("1.20"), label("1.20")))
	require.Equal(t, "UserRRef(RRefId = GloballyUniqueId(created_on=1, local_id=20), ForkId = GloballyUniqueId(created_on=0, local_id=3))",
		torch.Reference(false, label("1.20"), label("0.3")))
}

// counts is the metrics of references.
type counts map[string]int64

func (c counts) Metrics() map[string]int64 { return c }
func (counts) SharedValues() int           { return 5 }

func TestReferenceInfo(t *testing.T) {
	require.Equal(t, map[string]string{"num_owner_rrefs": "5", "num_forks": "7", "num_pending_users": "2"},
		torch.ReferenceInfo(counts{"owner_rrefs": 6, "forks": 7, "pending_users": 2}))
}

func TestAutogradInfo(t *testing.T) {
	require.Equal(t, map[string]string{"num_autograd_contexts": "3", "num_current_backward_passes": "2"},
		torch.AutogradInfo(counts{"num_autograd_contexts": 3, "num_current_backward_passes": 2, "dist.send_nodes": 1}))
}

func TestMessageTypes(t *testing.T) {
	types, err := torch.MessageTypes("BACKWARD_AUTOGRAD_REQ", "CLEANUP_AUTOGRAD_CONTEXT_REQ")
	require.NoError(t, err)
	require.Equal(t, []string{"dist.backward", "dist.cleanup"}, types)
	types, err = torch.MessageTypes("RREF_FORK_REQUEST", "SCRIPT_CALL", "PYTHON_CALL")
	require.NoError(t, err)
	require.Equal(t, []string{"rref.fork", agent.TypeInvoke, agent.TypeOp, agent.TypeFunc}, types)
	types[1] = "changed"
	types, err = torch.MessageTypes("SCRIPT_CALL")
	require.NoError(t, err)
	require.Equal(t, []string{agent.TypeInvoke, agent.TypeOp}, types)
	_, err = torch.MessageTypes("RREF_FORK_REQUEST", "RREF_FORK")
	require.ErrorIs(t, err, agent.ErrConfig)
	require.ErrorContains(t, err, `No mapping to rpc::MessageType exists for "RREF_FORK"`)
}
