// Package devicemap has the devices of the workers of a group, and the device maps by which they send
// tensors to each other's devices.
package devicemap

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// Map has, for devices of one worker, the device of another one to which tensors are sent.
type Map map[device.Device]device.Device

// PairError reports a pair of a device map: Device is sent to First and Second or, with Target, First and Second are sent
// to Device. If First and Second are zero, Device is no device, because it has no kind or a negative index.
type PairError struct {
	Device, First, Second device.Device
	Target                bool
}

func (e *PairError) Error() string {
	switch {
	case e.First.IsZero() && e.Second.IsZero():
		return fmt.Sprintf("device map: %v: a device has a kind, and its index must not be negative", e.Device)
	case e.Target:
		return fmt.Sprintf("the device map sends %v and %v to %v", e.First, e.Second, e.Device)
	}
	return fmt.Sprintf("the device map sends %v to %v and to %v", e.Device, e.First, e.Second)
}

// Check returns a *PairError unless all devices of m have a kind and an index that is not negative.
func (m Map) Check() error {
	for from, to := range m {
		for _, d := range []device.Device{from, to} {
			if d.Kind == "" || d.Index < 0 {
				return &PairError{Device: d}
			}
		}
	}
	return nil
}

// With returns a new map with the pairs of m and of more. The error is a *PairError for a wrong device, for one that m and
// more send to different ones, or for two that more sends to the same.
func (m Map) With(more Map) (Map, error) {
	if err := more.Check(); err != nil {
		return nil, err
	}
	if all := sorted(maps.Values(more)); len(all) < len(more) {
		return nil, more.ambiguous()
	}
	merged := Map{}
	maps.Copy(merged, m)
	for _, from := range sorted(maps.Keys(more)) {
		if before, ok := m[from]; ok && before != more[from] {
			return nil, &PairError{Device: from, First: before, Second: more[from]}
		}
		merged[from] = more[from]
	}
	return merged, nil
}

// ambiguous returns the error for the first two devices that m sends to the same one.
func (m Map) ambiguous() error {
	first := Map{}
	for _, from := range sorted(maps.Keys(m)) {
		if before, ok := first[m[from]]; ok {
			return &PairError{Device: m[from], First: before, Second: from, Target: true}
		}
		first[m[from]] = from
	}
	return nil
}

// Node is the devices of one worker, and its device maps, by the name of the other worker.
type Node struct {
	Name    string
	Devices []device.Device // that it uses, without the CPU; all if empty
	Counts  map[string]int  // of its devices, by kind
	Maps    map[string]Map
}

// ErrMaps reports that the device maps of a group do not fit the devices of its workers.
var ErrMaps = errors.New("device maps do not fit")

// Check returns nil if the device maps of all nodes of a static group fit their devices, and otherwise an error that
// matches ErrMaps and names the worker whose map it is. It depends on nothing but the nodes, so that all workers get the
// same.
//
// A worker that lists devices sends from and to these only. Otherwise an index must be below the number of devices
// of its kind.
func Check(nodes []Node) error {
	byName := map[string]Node{}
	var names []string
	for _, n := range nodes {
		byName[n.Name] = n
		names = append(names, n.Name)
		if err := n.checkDevices(); err != nil {
			return fmt.Errorf("%w: Node %s has %w", ErrMaps, n.Name, err)
		}
	}
	for _, n := range nodes {
		targets := slices.Sorted(maps.Keys(n.Maps))
		for _, target := range targets {
			if _, member := byName[target]; !member {
				return fmt.Errorf("%w: Node %s has invalid target node names in its device maps\ndevice maps = %v\nnode names = %v", ErrMaps, n.Name, targets, names)
			}
		}
		for _, target := range targets {
			if err := n.check(target, byName); err != nil {
				return fmt.Errorf("%w: Node %s has %w", ErrMaps, n.Name, err)
			}
		}
	}
	return nil
}

// CheckJoin is Check for the node of that name, which joins a dynamic group: only its own devices and maps, and the maps
// of others to it, are checked. Its maps to workers that are not among the nodes are checked when they join.
func CheckJoin(nodes []Node, name string) error {
	byName := map[string]Node{}
	for _, n := range nodes {
		byName[n.Name] = n
	}
	own := byName[name]
	if err := own.checkDevices(); err != nil {
		return fmt.Errorf("%w: Node %s has %w", ErrMaps, name, err)
	}
	for _, target := range slices.Sorted(maps.Keys(own.Maps)) {
		if err := own.check(target, byName); err != nil {
			return fmt.Errorf("%w: Node %s has %w", ErrMaps, name, err)
		}
	}
	for _, n := range nodes {
		if err := n.check(name, byName); err != nil && n.Maps[name] != nil {
			return fmt.Errorf("%w: Node %s has %w", ErrMaps, n.Name, err)
		}
	}
	return nil
}

// checkDevices returns an error if the devices that n lists are not all different, or if n does not have them.
func (n Node) checkDevices() error {
	if len(sorted(slices.Values(n.Devices))) < len(n.Devices) {
		return fmt.Errorf("duplicated devices\ndevices = %v", n.Devices)
	}
	if !n.has(slices.Values(n.Devices)) {
		return fmt.Errorf("devices with invalid indices\ndevices = %v\ndevice count = %v", n.Devices, n.Counts)
	}
	return nil
}

// check returns an error if the map of n to the worker of that name does not fit the devices of both.
func (n Node) check(name string, byName map[string]Node) error {
	m := n.Maps[name]
	target, member := byName[name]
	switch {
	case len(sorted(maps.Values(m))) < len(m):
		return fmt.Errorf("duplicated target devices in its device map for %s\ndevice map = %v", name, m)
	case !n.lists(maps.Keys(m)):
		return fmt.Errorf("unexpected source devices in its device map for %s\ndevice map = %v\ndevices = %v", name, m, n.Devices)
	case !n.has(maps.Keys(m)):
		return fmt.Errorf("source devices with invalid indices in its device map for %s\ndevice map = %v\ndevice count = %v", name, m, n.Counts)
	case member && !target.lists(maps.Values(m)):
		return fmt.Errorf("unexpected target devices in its device map for %s\ndevice map = %v\ndevices = %v", name, m, target.Devices)
	case member && !target.has(maps.Values(m)):
		return fmt.Errorf("target devices with invalid indices in its device map for %s\ndevice map = %v\ndevice count = %v", name, m, target.Counts)
	}
	return nil
}

// Used returns the devices of n that tensors may be sent from or to, by kind and index, without the CPU: those
// that it lists or, if it lists none, those in its maps and in the maps of all nodes to it.
func (n Node) Used(nodes []Node) []device.Device {
	if len(n.Devices) > 0 {
		return sorted(slices.Values(n.Devices))
	}
	all := map[device.Device]bool{}
	for _, m := range n.Maps {
		for from := range m {
			all[from] = true
		}
	}
	for _, other := range nodes {
		for _, to := range other.Maps[n.Name] {
			all[to] = true
		}
	}
	delete(all, device.CPU())
	return sorted(maps.Keys(all))
}

// Inverse returns the map of replies: from the devices to which m sends tensors back to where they come from.
func (m Map) Inverse() Map {
	inverse := Map{}
	for from, to := range m {
		inverse[to] = from
	}
	return inverse
}

// String returns the pairs of m in the order of their keys, such as "{npu:0: npu:1}".
func (m Map) String() string {
	var pairs []string
	for _, from := range sorted(maps.Keys(m)) {
		pairs = append(pairs, fmt.Sprintf("%v: %v", from, m[from]))
	}
	return "{" + strings.Join(pairs, ", ") + "}"
}

// lists reports whether n lists no devices, or all of these except the CPU.
func (n Node) lists(all func(func(device.Device) bool)) bool {
	for d := range all {
		if len(n.Devices) > 0 && d != device.CPU() && !slices.Contains(n.Devices, d) {
			return false
		}
	}
	return true
}

// has reports whether n has all of these devices.
func (n Node) has(all func(func(device.Device) bool)) bool {
	for d := range all {
		if d != device.CPU() && (d.Index < 0 || d.Index >= n.Counts[d.Kind]) {
			return false
		}
	}
	return true
}

// sorted returns the distinct devices, by kind and index.
func sorted(all func(func(device.Device) bool)) []device.Device {
	return slices.Compact(slices.SortedFunc(all, func(a, b device.Device) int {
		return cmp.Or(strings.Compare(a.Kind, b.Kind), cmp.Compare(a.Index, b.Index))
	}))
}
