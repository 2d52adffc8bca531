package roster

import (
	"errors"
	"fmt"
	"strconv"
)

// Causes of an [*Error]. Match them with errors.Is. The errors of the store are
// matched as well, and those of the context.
var (
	// ErrName: the name of a worker or of the group is none. A worker's has 1 to
	// 127 characters of A-Z, a-z, 0-9, "_", ":" and "-".
	ErrName = errors.New("bad name")

	// ErrMember: what a member says about itself cannot be: its rank, versions,
	// addresses or size.
	ErrMember = errors.New("bad member")

	// ErrWorldSize: members do not agree on the size of the group, or a rank is
	// not below it.
	ErrWorldSize = errors.New("world size does not fit")

	// ErrDuplicateName: two members have the same name.
	ErrDuplicateName = errors.New("name is not unique")

	// ErrDuplicateRank: two members have the same rank.
	ErrDuplicateRank = errors.New("rank is not unique")

	// ErrMixed: some members want a static group, others a dynamic one.
	ErrMixed = errors.New("static and dynamic members are mixed")

	// ErrRejoin: another incarnation has this name or rank and has not left. If
	// it has died: a static group must be formed anew under another group name,
	// in a dynamic one it can be removed or replaced.
	ErrRejoin = errors.New("another incarnation has joined and not left")

	// ErrVersion: two members have no version in common, or what is on the store
	// was written by a later version of this package.
	ErrVersion = errors.New("versions do not fit")

	// ErrCorrupt: what is on the store makes no sense.
	ErrCorrupt = errors.New("the store holds no roster, or a damaged one")

	// ErrLost: the store has lost its content since this member joined, as one
	// does that was started again. Form the group anew.
	ErrLost = errors.New("the store has lost the group")

	// ErrRemoved: this member is not in its dynamic group any more: others have
	// removed or replaced it, as one that had died.
	ErrRemoved = errors.New("removed from the group")

	// ErrStatic: members of a static group cannot be removed.
	ErrStatic = errors.New("the group is static")
)

// Error says what could not be done, in which group, and who wanted it.
type Error struct {
	Op     string // "join", "leave", "refresh", "watch" or "remove"
	Group  string
	Member string // the name of the member here
	Err    error  // the cause
}

func (e *Error) Error() string {
	return fmt.Sprintf("roster: %s %s as %s: %v", e.Op, strconv.Quote(e.Group), strconv.Quote(e.Member), e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// clash is a cause with words of its own, which PyTorch's tests know.
type clash struct {
	cause error
	text  string
}

func (c *clash) Error() string { return c.text }
func (c *clash) Unwrap() error { return c.cause }

func clashf(cause error, format string, args ...any) error {
	return &clash{cause, fmt.Sprintf(format, args...)}
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}
