package pipe

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
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

	// MinBytes is the size from which tensors take the channel. In the native
	// dialect smaller tensors take the next channel by priority that serves
	// their devices and has no larger MinBytes, if there is one. The server's
	// value counts. Negative counts as 0.
	MinBytes int

	unusable map[device.Device]string // devices of this end that it does not serve, with the reasons
}

var errTooManyProbed = fmt.Errorf("%d channels before it must be probed too, and no more can be", wire.MaxProbed)

// registry holds the transports and channels of a context that are usable, in the order of choice,
// and those that are refused, with the reasons.
type registry struct {
	transports []TransportEntry
	channels   []ChannelEntry
	refused    []Refusal
}

// newRegistry returns a registry of the given entries, sorted in the order of choice. It asks each
// transport and channel that the policy does not forbid whether it works on this machine. One that
// does not work, or that the policy forbids, is listed as refused, with the reason, and so is a
// channel that must be probed after wire.MaxProbed others in that order. newRegistry
// does not keep the slices. The error matches ErrOptions: checkEntries rejects an entry, or a
// channel's device cannot be encoded.
func newRegistry(transports []TransportEntry, channels []ChannelEntry, policy Policy) (*registry, error) {
	r := &registry{}
	if err := checkEntries(CandidateTransport, transports, TransportEntry.identity); err != nil {
		return nil, err
	}
	if err := checkEntries(CandidateChannel, channels, ChannelEntry.identity); err != nil {
		return nil, err
	}
	for _, e := range sortEntries(transports, TransportEntry.identity, policy.Transports) {
		if r.addUsable(CandidateTransport, e.Name, policy.Transports, e.Transport.Viable) {
			r.transports = append(r.transports, e)
		}
	}
	probed := 0
	for _, e := range sortEntries(channels, ChannelEntry.identity, policy.Channels) {
		viable := e.Factory.Viable
		_, needsProbe := e.Factory.(channel.Prober)
		if needsProbe && probed == wire.MaxProbed {
			viable = func() error { return errTooManyProbed }
		}
		if !r.addUsable(CandidateChannel, e.Name, policy.Channels, viable) {
			continue
		}
		if needsProbe {
			probed++
		}
		if reporter, ok := e.Factory.(channel.DeviceReporter); ok {
			e.unusable = texts(reporter.Unusable())
		}
		for d := range merged(e.Factory.DeviceDescriptors(), e.unusable) {
			if err := (wire.Limits{}).CheckDevice(d); err != nil { // it cannot be encoded
				return nil, fmt.Errorf("%w: channel %q: %w", ErrOptions, e.Name, err)
			}
		}
		r.channels = append(r.channels, e)
	}
	return r, nil
}

// merged returns a new map with the entries of a and those of b, which replace those of a.
func merged[K comparable](a, b map[K]string) map[K]string {
	out := make(map[K]string, len(a)+len(b))
	maps.Copy(out, a)
	maps.Copy(out, b)
	return out
}

// texts returns the texts of the errors in all.
func texts(all channel.DeviceErrors) map[device.Device]string {
	out := make(map[device.Device]string, len(all))
	for d, err := range all {
		out[d] = err.Error()
	}
	return out
}

// without returns a copy of r whose channels do not serve further devices of this end: those in
// devices, by the name of the channel, with the reasons.
func (r *registry) without(devices map[string]map[device.Device]string) *registry {
	out := *r
	out.channels = slices.Clone(r.channels)
	for i := range out.channels {
		e := &out.channels[i]
		e.unusable = merged(e.unusable, devices[e.Name])
	}
	return &out
}

// unusable returns why channels of r do not serve devices of this end.
func (r *registry) unusable() map[wire.ChannelDevice]string {
	out := map[wire.ChannelDevice]string{}
	for _, e := range r.channels {
		for d, reason := range e.unusable {
			out[wire.ChannelDevice{Channel: e.Name, Device: d}] = reason
		}
	}
	return out
}

// unusableDevices returns the refusals of devices of this end, in the order of the channels and then
// of the devices.
func (r *registry) unusableDevices() (out []Refusal) {
	for _, e := range r.channels {
		for _, d := range slices.SortedFunc(maps.Keys(e.unusable), compareDevices) {
			out = append(out, Refusal{Kind: CandidateChannel, Name: e.Name, Local: d, Reason: e.unusable[d]})
		}
	}
	return out
}

// peerDevices returns the refusals of the peer's devices for the channels of r, for the reasons that
// the peer sent. sender names the peer.
func (r *registry) peerDevices(reasons map[wire.ChannelDevice]string, sender string) (out []Refusal) {
	for c, reason := range reasons {
		if _, known := r.channel(c.Channel); known && sanitize(c.Device.Kind) == c.Device.Kind {
			out = append(out, Refusal{
				Kind: CandidateChannel, Name: c.Channel, Remote: c.Device, Reason: sender + ": " + sanitizeReason(reason),
			})
		}
	}
	slices.SortFunc(out, func(a, b Refusal) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), compareDevices(a.Remote, b.Remote))
	})
	return out
}

// descriptors returns the descriptors of the devices of this end that the channel serves. The caller
// may change the map.
func (e ChannelEntry) descriptors() deviceDescriptors {
	out := e.Factory.DeviceDescriptors()
	for d := range e.unusable {
		delete(out, d)
	}
	return out
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

// addUsable reports whether the entry with this name is usable: the rule does not forbid it, and
// viable returns nil. It adds an unusable entry to r.refused, with the reason. It does not add a
// usable entry; the caller does.
func (r *registry) addUsable(kind CandidateKind, name string, rule Rule, viable func() error) bool {
	reason := ""
	if slices.Contains(rule.Forbid, name) {
		reason = "forbidden by the policy"
	} else if err := viable(); err != nil {
		reason = err.Error()
	}
	if reason != "" {
		r.refused = append(r.refused, Refusal{Kind: kind, Name: name, Reason: reason})
	}
	return reason == ""
}

// identity has the fields of a transport or channel entry that are checked and sorted by. missing
// is set if the entry has no implementation.
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

// checkEntries returns nil if all entries are complete and distinct. It returns an error that
// matches ErrOptions for an entry without a name or an implementation, with a reserved name, or
// with the name or the priority of another entry, because the choice is then ambiguous. kind is for
// the error's text. id returns these fields of an entry.
func checkEntries[E any](kind CandidateKind, entries []E, id func(E) identity) error {
	names, priorities := map[string]bool{}, map[int]bool{}
	for _, e := range entries {
		switch i := id(e); {
		case i.name == "":
			return fmt.Errorf("%w: a %s entry has no name", ErrOptions, kind)
		case i.name == wire.MarkerName:
			return fmt.Errorf("%w: %s name %q has another meaning on the wire", ErrOptions, kind, i.name)
		case i.missing:
			return fmt.Errorf("%w: %s entry %q has no implementation", ErrOptions, kind, i.name)
		case names[i.name]:
			return fmt.Errorf("%w: %s name %q is registered twice", ErrOptions, kind, i.name)
		case priorities[i.priority]:
			return fmt.Errorf("%w: %s priority %d is given twice, to %q too", ErrOptions, kind, i.priority, i.name)
		default:
			names[i.name], priorities[i.priority] = true, true
		}
	}
	return nil
}

// sortEntries returns a sorted copy of entries: first those that the rule prefers, in the order of
// rule.Prefer, and then the others by descending priority. id returns the name and the priority of
// an entry.
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

// reasonsByName returns a new map of the reasons why entries of this kind are not used, by name:
// those of r's refused entries, and those in more. If a name is in both, the reason in more counts.
// more may be nil.
func (r *registry) reasonsByName(kind CandidateKind, more map[string]string) map[string]string {
	out := reasonMap(r.refusals(kind))
	maps.Copy(out, more)
	return out
}

// refusals returns a new slice of r's refused entries of one kind, nil if there are none.
func (r *registry) refusals(kind CandidateKind) (out []Refusal) {
	for _, refusal := range r.refused {
		if refusal.Kind == kind {
			out = append(out, refusal)
		}
	}
	return out
}

// reasonMap returns a new map from the names in refused to the reasons.
func reasonMap(refused []Refusal) map[string]string {
	out := map[string]string{}
	for _, r := range refused {
		out[r.Name] = r.Reason
	}
	return out
}

// errNoTransports is returned for options without a usable transport.
var errNoTransports = fmt.Errorf("%w: no usable transport; register at least one", ErrOptions)
