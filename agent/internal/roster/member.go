package roster

import (
	"fmt"
	"slices"
)

// Bounds of a Member's fields, and of a group.
const (
	maxName  = 127
	maxGroup = 255
	maxRank  = 1<<15 - 1 // as in PyTorch
	maxWorld = maxRank + 1
	maxURLs  = 16
	maxURL   = 2 << 10
	maxExtra = 16 << 10
)

// Incarnation identifies one life of a worker under its name.
type Incarnation [16]byte

// Member describes one worker to all members of its group.
type Member struct {
	Name string // 1 to 127 characters; unique in the group
	Rank int    // 0 to 32,767, unique; JoinDynamic replaces a negative rank by the lowest free one

	// Incarnation is random and different each time the worker starts. It must not be zero.
	Incarnation Incarnation

	URLs []string // where it listens; at most 16, of at most 2 KiB each

	// MinVersion and MaxVersion are the versions of the caller's protocol that the worker
	// supports. Any two members must have one in common.
	MinVersion, MaxVersion uint32

	Static bool   // set by JoinStatic
	Extra  []byte // data of the caller for the other members; at most 16 KiB

	// Replace lets JoinDynamic replace another incarnation of the same name, which the
	// caller knows to be dead. Other members do not see this field.
	Replace bool

	// Waiting is called while JoinStatic waits for others, with the text that names their ranks:
	// after about a second, and then at most every ten seconds if it has changed. JoinStatic blocks
	// until it returns. It may be nil. Other members do not see this field.
	Waiting func(missing string)
}

func (m Member) check() error {
	if err := checkName(m.Name); err != nil {
		return err
	}
	switch {
	case m.Rank > maxRank:
		return &RankError{m.Rank}
	case m.Incarnation == Incarnation{}:
		return fmt.Errorf("%w: no incarnation", ErrMember)
	case m.MinVersion > m.MaxVersion:
		return fmt.Errorf("%w: versions from %d to %d", ErrMember, m.MinVersion, m.MaxVersion)
	case len(m.URLs) > maxURLs:
		return fmt.Errorf("%w: %d addresses, and %d are allowed", ErrMember, len(m.URLs), maxURLs)
	case len(m.Extra) > maxExtra:
		return fmt.Errorf("%w: %d extra bytes, and %d are allowed", ErrMember, len(m.Extra), maxExtra)
	}
	for _, url := range m.URLs {
		if len(url) > maxURL {
			return fmt.Errorf("%w: an address of %d bytes, and %d are allowed", ErrMember, len(url), maxURL)
		}
	}
	return nil
}

func checkName(name string) error {
	good := name != "" && len(name) <= maxName
	for _, c := range []byte(name) {
		good = good && ('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == ':' || c == '-')
	}
	if !good {
		return &NameError{name}
	}
	return nil
}

func checkGroup(group string) error {
	if group == "" || len(group) > maxGroup {
		return fmt.Errorf("%w: a group name of %d bytes, and 1 to %d are allowed", ErrName, len(group), maxGroup)
	}
	return nil
}

// compatible reports whether the version ranges of m and o overlap.
func (m Member) compatible(o Member) bool {
	return m.MinVersion <= o.MaxVersion && o.MinVersion <= m.MaxVersion
}

// clone returns a copy of m with copies of its URLs and Extra.
func (m Member) clone() Member {
	m.URLs, m.Extra = slices.Clone(m.URLs), slices.Clone(m.Extra)
	return m
}

// findConflict returns a conflict between the members of a static group: the first two with the
// same name, or else two without a common version. It returns nil if there is no conflict. members
// must be ordered by rank and not be empty.
func findConflict(members []Member) *failure {
	ranks := make(map[string]int, len(members))
	strictest, newest := members[0], members[0] // lowest MaxVersion, highest MinVersion
	for _, m := range members {
		if other, taken := ranks[m.Name]; taken {
			return &failure{kind: sameName, name: m.Name, a: other, b: m.Rank}
		}
		ranks[m.Name] = m.Rank
		if m.MaxVersion < strictest.MaxVersion {
			strictest = m
		}
		if m.MinVersion > newest.MinVersion {
			newest = m
		}
	}
	if !strictest.compatible(newest) {
		return &failure{kind: noCommonVersion, name: strictest.Name, other: newest.Name}
	}
	return nil
}
