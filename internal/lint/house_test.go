package lint

import (
	"path"
	"strings"
)

const module = "github.com/tensorpipe-go/tensorpipe"

// implementations is the floor of everything that talks to the operating
// system or to a device.
const implementations = 2

// house is the one list of packages by floor, from the cellar up. A new
// package takes its place here first; a pattern stands for packages that come
// in numbers. Some names are of packages still to be written.
var house = [][]string{
	0: {"device", "device/delayed", "tensor", "tensor/safetensors", "internal/*", "internal/wire/capture"},
	1: {"transport", "transport/transporttest", "channel", "channel/channeltest", "channel/channeltest/npu", "internal/bulk", "internal/framed", "internal/simnet", "internal/mux", "internal/ringnet"},
	2: {"uv", "shm", "transport/mem", "channel/basic", "channel/xth", "channel/mpt", "channel/cma", "cudaipc"},
	3: {".", "pipe", "pipe/hostile", "pipe/samehost"},
	4: {"agent", "agent/*", "agent/internal/*", "agent/store/storetest"},
	5: {"rref"},
	6: {"autograd", "autograd/dist"},
	7: {"cmd/*", "cmd/tpipe/internal/*", "examples/*", "bench", "bench/rpc", "bench/internal/*", "internal/interop"},
}

// lean lists the packages that must not pull in what only some users want, and
// heavy what that is.
var (
	lean  = []string{".", "pipe", "agent"}
	heavy = []string{"github.com/ebitengine/purego", "gorgonia.org/cu", "gonum.org/v1"}
)

// floor finds the floor of a package by its name within the module. An exact
// name wins over a pattern.
func floor(name string) (int, bool) {
	found := -1
	for i, names := range house {
		for _, pattern := range names {
			if pattern == name {
				return i, true
			}
			if ok, _ := path.Match(pattern, name); ok {
				found = i
			}
		}
	}
	return found, found >= 0
}

// local is the name of a package within the module, "." for the root. ok is
// false for packages of other modules and of the standard library.
func local(importPath string) (name string, ok bool) {
	if importPath == module {
		return ".", true
	}
	return strings.CutPrefix(importPath, module+"/")
}
