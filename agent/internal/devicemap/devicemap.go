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

// Node is the devices of one worker, and its device maps, by the name of the other worker.
type Node struct {
	Name    string
	Devices []device.Device // that it uses, without the CPU; all if empty
	Counts  map[string]int  // of its devices, by kind
	Maps    map[string]Map
}

// ErrMaps reports that the device maps of a group do not fit the devices of its workers.
var ErrMaps = errors.New("device maps do not fit")

// Check returns nil if the device maps of all nodes fit their devices, and otherwise an error that matches
// ErrMaps and names the worker whose map it is. It depends on nothing but the nodes, so that all workers get the
// same. Maps to workers that are not among the nodes are errors only if the group is static.
//
// A worker that lists devices sends from and to these only. Otherwise an index must be below the number of devices
// of its kind.
func Check(nodes []Node, static bool) error {
	byName := map[string]Node{}
	var names []string
	for _, n := range nodes {
		byName[n.Name] = n
		names = append(names, n.Name)
		if len(sorted(slices.Values(n.Devices))) < len(n.Devices) {
			return fmt.Errorf("%w: Node %s has duplicated devices\ndevices = %v", ErrMaps, n.Name, n.Devices)
		}
		if !n.has(slices.Values(n.Devices)) {
			return fmt.Errorf("%w: Node %s has devices with invalid indices\ndevices = %v\ndevice count = %v", ErrMaps, n.Name, n.Devices, n.Counts)
		}
	}
	for _, n := range nodes {
		targets := slices.Sorted(maps.Keys(n.Maps))
		for _, target := range targets {
			if _, member := byName[target]; static && !member {
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
