package pipe

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// TransportEntry registers a transport with a context.
type TransportEntry struct {
	// Name is the scheme of URLs and the name on the wire; a peer must use the
	// same one.
	Name string

	// Priority orders the transports: the larger wins. Peers of the C++
	// implementation must use the same order.
	Priority int

	Transport transport.Transport
}

// ChannelEntry registers a channel type with a context. The fields mean what
// those of [TransportEntry] do.
type ChannelEntry struct {
	Name     string
	Priority int
	Factory  channel.Factory

	// MinBytes is from which size on the channel is worth its while. In the
	// native dialect smaller tensors take the next channel by priority that
	// serves their devices and is not too large for them, if there is one. The
	// end that listens decides. Negative counts as 0.
	MinBytes int
}

// registry holds the entries that may be used, highest priority first, and
// what was refused.
type registry struct {
	transports []TransportEntry
	channels   []ChannelEntry
	refused    []Refusal
}

// newRegistry checks the entries and drops those that the machine or the
// policy refuses, with the reason.
func newRegistry(transports []TransportEntry, channels []ChannelEntry, policy Policy) (*registry, error) {
	r := &registry{}
	if err := checkEntries("transport", transports, TransportEntry.identity); err != nil {
		return nil, err
	}
	if err := checkEntries("channel", channels, ChannelEntry.identity); err != nil {
		return nil, err
	}
	for _, e := range sortEntries(transports, TransportEntry.identity, policy.Transports) {
		if r.admit("transport", e.Name, policy.Transports, e.Transport.Viable) {
			r.transports = append(r.transports, e)
		}
	}
	for _, e := range sortEntries(channels, ChannelEntry.identity, policy.Channels) {
		if !r.admit("channel", e.Name, policy.Channels, e.Factory.Viable) {
			continue
		}
		if err := e.checkDevices(); err != nil {
			return nil, err
		}
		r.channels = append(r.channels, e)
	}
	return r, nil
}

// checkDevices refuses devices that have no form on the wire.
func (e ChannelEntry) checkDevices() error {
	for d := range e.Factory.DeviceDescriptors() {
		if err := (wire.Limits{}).CheckDevice(d); err != nil {
			return fmt.Errorf("%w: channel %q: %w", ErrOptions, e.Name, err)
		}
	}
	return nil
}

func (r *registry) transport(name string) (TransportEntry, bool) {
	return find(r.transports, func(e TransportEntry) bool { return e.Name == name })
}

func (r *registry) channel(name string) (ChannelEntry, bool) {
	return find(r.channels, func(e ChannelEntry) bool { return e.Name == name })
}

func find[E any](entries []E, match func(E) bool) (E, bool) {
	if i := slices.IndexFunc(entries, match); i >= 0 {
		return entries[i], true
	}
	var none E
	return none, false
}

// admit reports whether an entry may be used and records why not.
func (r *registry) admit(what, name string, rule Rule, viable func() error) bool {
	reason := ""
	if slices.Contains(rule.Forbid, name) {
		reason = "forbidden by the policy"
	} else if err := viable(); err != nil {
		reason = err.Error()
	}
	if reason != "" {
		r.refused = append(r.refused, Refusal{What: what, Name: name, Reason: reason})
	}
	return reason == ""
}

// identity is what all entries have in common.
type identity struct {
	name     string
	priority int
	missing  bool
}

func (e TransportEntry) identity() identity {
	return identity{e.Name, e.Priority, e.Transport == nil}
}

func (e ChannelEntry) identity() identity {
	return identity{e.Name, e.Priority, e.Factory == nil}
}

func names[E any](entries []E, id func(E) identity) []string {
	out := make([]string, 0, len(entries))
	for _, e := range entries {
		out = append(out, id(e).name)
	}
	return out
}

// checkEntries refuses empty and repeated names and priorities: with them the
// choice would depend on chance.
func checkEntries[E any](what string, entries []E, id func(E) identity) error {
	names, priorities := map[string]bool{}, map[int]bool{}
	for _, e := range entries {
		switch i := id(e); {
		case i.name == "":
			return fmt.Errorf("%w: a %s entry has no name", ErrOptions, what)
		case i.name == wire.MarkerName:
			return fmt.Errorf("%w: %s name %q has another meaning on the wire", ErrOptions, what, i.name)
		case i.missing:
			return fmt.Errorf("%w: %s entry %q has no implementation", ErrOptions, what, i.name)
		case names[i.name]:
			return fmt.Errorf("%w: %s name %q is registered twice", ErrOptions, what, i.name)
		case priorities[i.priority]:
			return fmt.Errorf("%w: %s priority %d is given twice, to %q too", ErrOptions, what, i.priority, i.name)
		default:
			names[i.name], priorities[i.priority] = true, true
		}
	}
	return nil
}

// sortEntries orders entries from the highest priority; those that the policy
// prefers come first, in the order of the policy.
func sortEntries[E any](entries []E, id func(E) identity, rule Rule) []E {
	rank := func(e E) int {
		if i := slices.Index(rule.Prefer, id(e).name); i >= 0 {
			return i
		}
		return len(rule.Prefer)
	}
	sorted := slices.Clone(entries)
	slices.SortStableFunc(sorted, func(a, b E) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(id(b).priority, id(a).priority))
	})
	return sorted
}

// errNoEntries is returned for options without any usable transport.
var errNoEntries = fmt.Errorf("%w: no usable transport; register at least one", ErrOptions)
