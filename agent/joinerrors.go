package agent

import "github.com/tensorpipe-go/tensorpipe/agent/internal/roster"

// What can keep workers from becoming or staying a group, beside ErrConfig and the errors
// of package store.
var (
	// ErrName says that the name of a worker or of the group is none.
	ErrName = roster.ErrName

	// ErrWorldSize says that workers do not agree on the size of the group, or that a
	// rank is not below it.
	ErrWorldSize = roster.ErrWorldSize

	// ErrDuplicateName and ErrDuplicateRank say that two workers have the same. Who
	// comes when the group is complete gets ErrJoined.
	ErrDuplicateName = roster.ErrDuplicateName
	ErrDuplicateRank = roster.ErrDuplicateRank

	// ErrMixed says that some workers want a static group, others a dynamic one.
	ErrMixed = roster.ErrMixed

	// ErrVersion says that workers have no version in common of what agents say to each
	// other, or that what is on the store was written by a later version.
	ErrVersion = roster.ErrVersion

	// ErrJoined says that another incarnation of the worker has joined and not left.
	// One that died is in a static group for good: a new group needs a new name.
	ErrJoined = roster.ErrRejoin

	// ErrStoreLost says that the store has lost the group, as one does that is
	// started again.
	ErrStoreLost = roster.ErrLost

	// ErrRemoved says that this worker is not in its dynamic group any more: another
	// one took it for dead, see Agent.Remove, or took its place, see Config.Replace.
	ErrRemoved = roster.ErrRemoved

	// ErrStatic says that no member of a static group can be removed.
	ErrStatic = roster.ErrStatic
)
