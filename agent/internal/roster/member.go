package roster

import (
	"fmt"
	"slices"
)

// Bounds of what one member may say about itself.
const (
	maxName  = 127
	maxGroup = 255
	maxRank  = 1<<15 - 1 // as in PyTorch
	maxWorld = maxRank + 1
	maxURLs  = 16
	maxURL   = 2 << 10
	maxExtra = 16 << 10
)

// Incarnation tells a worker from one that had its name before, or will have.
type Incarnation [16]byte

// Member is one worker of a group, as all see it.
type Member struct {
	Name string // 1 to 127 characters; unique in the group
	Rank int    // from 0 to 32,767, unique; below 0 JoinDynamic gives the lowest that is free

	// Incarnation is random, and made anew whenever the worker starts. It must
	// not be zero.
	Incarnation Incarnation

	URLs []string // where it listens; at most 16, of at most 2 KiB each

	// MinVersion and MaxVersion are what it speaks of the protocol that the
	// caller has in mind. Any two members must have one in common.
	MinVersion, MaxVersion uint32

	Static bool   // set by JoinStatic, and by nobody else
	Extra  []byte // whatever the caller wants others to know; at most 16 KiB

	// Replace lets JoinDynamic take the place of another incarnation of the same
	// name, which is known to be dead. Others do not see it.
	Replace bool
}

func (m Member) check() error {
	if err := checkName(m.Name); err != nil {
		return err
	}
	switch {
	case m.Rank > maxRank:
		return clashf(ErrMember, "RPC worker id %d out of bound of int16_t.", m.Rank)
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
	for i := 0; good && i < len(name); i++ {
		good = allowed(name[i])
	}
	if !good {
		return clashf(ErrName, "Worker name must match ^[A-Za-z0-9-_:]*$, and must be non-empty and shorter than 128 chars, but got %.200q", name)
	}
	return nil
}

func allowed(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == ':' || c == '-'
}

func checkGroup(group string) error {
	if group == "" || len(group) > maxGroup {
		return fmt.Errorf("%w: a group name of %d bytes, and 1 to %d are allowed", ErrName, len(group), maxGroup)
	}
	return nil
}

// understands returns whether two members have a version in common.
func (m Member) understands(o Member) bool {
	return m.MinVersion <= o.MaxVersion && o.MinVersion <= m.MaxVersion
}

// private returns a member that shares no memory with the caller's.
func (m Member) private() Member {
	m.URLs, m.Extra = slices.Clone(m.URLs), slices.Clone(m.Extra)
	return m
}

// judge looks for what speaks against a complete static group. members are in the
// order of their ranks.
func judge(members []Member) *failure {
	ranks := make(map[string]int, len(members))
	strictest, newest := members[0], members[0] // by the lowest maximum, and the highest minimum
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
	if !strictest.understands(newest) {
		return &failure{kind: noVersion, name: strictest.Name, other: newest.Name}
	}
	return nil
}
