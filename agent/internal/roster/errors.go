package roster

import (
	"errors"
	"fmt"
)

// Causes of an [*Error], for errors.Is. It also matches errors of the store and of the context.
var (
	// ErrName reports an invalid name of a worker or of the group. A worker's name has 1 to
	// 127 characters of A-Z, a-z, 0-9, "_", ":" and "-".
	ErrName = errors.New("bad name")

	// ErrMember reports a Member with an invalid rank, incarnation, version range, URL or Extra.
	ErrMember = errors.New("bad member")

	// ErrWorldSize reports that members do not agree on the size of the group, or that a rank
	// is not below it.
	ErrWorldSize = errors.New("world size does not fit")

	// ErrDuplicateName reports that two members have the same name.
	ErrDuplicateName = errors.New("name is not unique")

	// ErrDuplicateRank reports that two members have the same rank.
	ErrDuplicateRank = errors.New("rank is not unique")

	// ErrMixed reports that some members want a static group, others a dynamic one.
	ErrMixed = errors.New("static and dynamic members are mixed")

	// ErrRejoin reports that another incarnation has this name or rank and has not left. If
	// that one has died, a static group must be formed under another group name; in a dynamic
	// group it can be removed or replaced.
	ErrRejoin = errors.New("another incarnation has joined and not left")

	// ErrVersion reports that two members have no version in common, or that a value on the
	// store was written by a later version of this package.
	ErrVersion = errors.New("versions do not fit")

	// ErrCorrupt reports an invalid value on the store.
	ErrCorrupt = errors.New("invalid value on the store")

	// ErrLost reports that the store has lost its content since this member joined, as after
	// a restart. All members must join again.
	ErrLost = errors.New("the store has lost the group")

	// ErrRemoved reports that this member is no longer in its dynamic group: another member
	// removed or replaced it.
	ErrRemoved = errors.New("removed from the group")

	// ErrNoGroup reports that the store has no group of that name, or that a static one still waits
	// for members.
	ErrNoGroup = errors.New("no such group on the store, or its workers have not joined yet")

	// ErrStatic reports that members of a static group cannot be removed.
	ErrStatic = errors.New("the group is static")
)

// Error is the error of an operation on a group by one member.
type Error struct {
	Op     string // "join", "leave", "refresh", "watch", "remove" or "read"
	Group  string
	Member string // the name of the member here; empty for "read"
	Err    error  // the cause
}

// Error returns the group and the text of the cause. The error of the agent that wraps e has the
// operation and the member.
func (e *Error) Error() string {
	return fmt.Sprintf("group %q: %v", e.Group, e.Err)
}

// Unwrap returns the cause of the failure, which is the field Err.
func (e *Error) Unwrap() error { return e.Err }

// NameError is the error of an invalid name of a worker. It matches ErrName.
type NameError struct{ Name string }

func (e *NameError) Error() string {
	return fmt.Sprintf("%v: a worker's name has 1 to %d characters of A-Z, a-z, 0-9, _, : and -, got %.200q", ErrName, maxName, e.Name)
}

// Unwrap returns ErrName.
func (e *NameError) Unwrap() error { return ErrName }

// RankError is the error of a rank that is too large. It matches ErrMember.
type RankError struct{ Rank int }

func (e *RankError) Error() string {
	return fmt.Sprintf("rank %d exceeds the limit of %d", e.Rank, maxRank)
}

// Unwrap returns ErrMember.
func (e *RankError) Unwrap() error { return ErrMember }

// DuplicateNameError is the error of two members with the same name. It matches ErrDuplicateName.
type DuplicateNameError struct {
	Name        string
	Rank, Other int // of the two members
}

func (e *DuplicateNameError) Error() string {
	return fmt.Sprintf("%v: ranks %d and %d have the name %s", ErrDuplicateName, e.Rank, e.Other, e.Name)
}

// Unwrap returns ErrDuplicateName.
func (e *DuplicateNameError) Unwrap() error { return ErrDuplicateName }

// NotLeftError is the error of joining a dynamic group under the name of another incarnation that
// has not left it. It matches ErrRejoin and ErrDuplicateName.
type NotLeftError struct {
	Name string
	Rank int // of the other incarnation
}

func (e *NotLeftError) Error() string {
	return fmt.Sprintf("%v: another incarnation has the name %s, with rank %d, and has not left: if it has died, remove or replace it",
		ErrDuplicateName, e.Name, e.Rank)
}

// Unwrap returns ErrRejoin and ErrDuplicateName.
func (e *NotLeftError) Unwrap() []error { return []error{ErrRejoin, ErrDuplicateName} }

// DuplicateRankError is the error of two members with the same rank. It matches ErrDuplicateRank.
type DuplicateRankError struct {
	Rank   int
	Holder string // the member that has the rank
	Other  string // the member that cannot have it
}

func (e *DuplicateRankError) Error() string {
	return fmt.Sprintf("%v: worker %s has rank %d, so %s cannot have it", ErrDuplicateRank, e.Holder, e.Rank, e.Other)
}

// Unwrap returns ErrDuplicateRank.
func (e *DuplicateRankError) Unwrap() error { return ErrDuplicateRank }

// clash is the error of members that contradict each other. It matches cause, and has its own text.
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

// failure is the reason for which a generation failed. It is stored in the group's state, so
// that every member reports the same error.
type failure struct {
	gen         uint64
	kind        conflict
	name, other string
	a, b        int
}

// conflict is the kind of a failure. It determines the meaning of name, other, a and b.
type conflict byte

const (
	sameName        conflict = iota + 1 // name; both ranks
	sameRank                            // holder and second claimant of the rank; the rank
	joinedTwice                         // name; its rank
	mixedKinds                          // the joining member
	worldMismatch                       // the joining member; its world size, and that of the others
	noCommonVersion                     // two members without a common version
	lastConflict
)

func (f failure) err() error {
	switch f.kind {
	case sameName:
		same := &DuplicateNameError{f.name, f.a, f.b}
		return &clash{same, same.Error()}
	case sameRank:
		same := &DuplicateRankError{f.a, f.name, f.other}
		return &clash{same, same.Error()}
	case joinedTwice:
		return clashf(ErrRejoin, "worker %s with rank %d wants to join twice: it was started again while the others waited, or runs twice", f.name, f.a)
	case mixedKinds:
		return &clash{ErrMixed, ErrMixed.Error()}
	case worldMismatch:
		return clashf(ErrWorldSize, "worker %s wants a group of %d, and others one of %d", f.name, f.a, f.b)
	default:
		return clashf(ErrVersion, "workers %s and %s have no version in common", f.name, f.other)
	}
}
