package wire

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/devicemap"
	"github.com/tensorpipe-go/tensorpipe/device"
)

// Member is what a worker publishes in the list of members, beside its name, rank and addresses. It is empty for a
// worker that is no client and has no devices.
type Member struct {
	_       struct{} `tensorpipe:"agent.member"`
	Client  bool
	Devices []device.Device // that it uses
	Counts  []DeviceCount   // by kind
	Maps    []DeviceMap     // by worker
}

// DeviceCount is the number of devices of one kind.
type DeviceCount struct {
	_     struct{} `tensorpipe:"agent.deviceCount"`
	Kind  string
	Count int
}

// DeviceMap is the device map for tensors that are sent to one worker.
type DeviceMap struct {
	_      struct{} `tensorpipe:"agent.deviceMap"`
	Worker string
	Routes []Route
}

// NewMember returns the Member of a worker with the devices and device maps of n.
func NewMember(client bool, n devicemap.Node) Member {
	m := Member{Client: client, Devices: n.Devices}
	for _, kind := range slices.Sorted(maps.Keys(n.Counts)) {
		m.Counts = append(m.Counts, DeviceCount{Kind: kind, Count: n.Counts[kind]})
	}
	for _, worker := range slices.Sorted(maps.Keys(n.Maps)) {
		m.Maps = append(m.Maps, DeviceMap{Worker: worker, Routes: Routes(n.Maps[worker])})
	}
	return m
}

// Node returns the devices and device maps of the member of that name.
func (m Member) Node(name string) devicemap.Node {
	n := devicemap.Node{Name: name, Devices: m.Devices, Counts: map[string]int{}, Maps: map[string]devicemap.Map{}}
	for _, c := range m.Counts {
		n.Counts[c.Kind] = c.Count
	}
	for _, to := range m.Maps {
		pairs := devicemap.Map{}
		for _, r := range to.Routes {
			pairs[r.From] = r.To
		}
		n.Maps[to.Worker] = pairs
	}
	return n
}

// Routes returns the pairs of a device map, by their devices at the sender.
func Routes(m devicemap.Map) []Route {
	var all []Route
	for from, to := range m {
		all = append(all, Route{From: from, To: to})
	}
	slices.SortFunc(all, func(a, b Route) int {
		return cmp.Or(strings.Compare(a.From.Kind, b.From.Kind), cmp.Compare(a.From.Index, b.From.Index))
	})
	return all
}

// clientOnly is the encoding of the Member of a client without devices. Earlier versions know no other one.
const clientOnly = "client"

// memberLimits bounds the memory for a Member.
var memberLimits = codec.Limits{MaxDepth: 8, Bytes: 16 << 10, MemoryBytes: 256 << 10, MaxElements: 16 << 10}

// EncodeMember returns the encoding of m, which belongs to the caller; it is empty if m is. The error matches
// codec.ErrLimit if m is too large.
func EncodeMember(m Member) ([]byte, error) {
	if len(m.Devices)+len(m.Counts)+len(m.Maps) == 0 {
		if m.Client {
			return []byte(clientOnly), nil
		}
		return nil, nil
	}
	return encode(&m, memberLimits)
}

// DecodeMember decodes data, which EncodeMember has encoded. The result shares no memory with data. The error
// matches ErrProtocol.
func DecodeMember(data []byte) (m Member, err error) {
	switch string(data) {
	case "":
	case clientOnly:
		m.Client = true
	default:
		if err := decode(data, &m, memberLimits); err != nil {
			return Member{}, fmt.Errorf("%w: %w", ErrProtocol, err)
		}
	}
	return m, nil
}
