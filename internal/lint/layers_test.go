package lint

import (
	"path"
	"strings"
)

const module = "github.com/tensorpipe-go/tensorpipe"

// implementationLayer is the layer of everything that talks to the operating system or to a device.
const implementationLayer = 2

// layers is the table of packages by layer, from the lowest up. A new package must be added to it.
// A pattern stands for any package whose name matches. Some packages of the table do not exist yet.
var layers = [][]string{
	0: {"device", "device/delayed", "tensor", "tensor/safetensors", "tensor/ops", "tensor/ops/gonumblas", "aten", "internal/*", "internal/testutil/*", "internal/wire/capture"},
	1: {"cudaipc/*", "cudaipc/driver/*", "transport", "transport/netconn", "transport/transporttest", "channel", "channel/channeltest", "channel/channeltest/npu", "internal/bulk", "internal/framed", "internal/onesided", "internal/testutil/drops", "internal/testutil/simnet", "internal/testutil/thirdparty", "internal/mux", "shm/internal/*"},
	2: {"uv", "shm", "transport/mem", "channel/basic", "channel/xth", "channel/mpt", "channel/cma", "cudaipc"},
	3: {".", "pipe", "pipe/hostile", "pipe/samehost", "cudaipc/samehost"},
	4: {"agent", "agent/*", "agent/internal/*", "agent/store/storetest", "internal/testutil/cudagroup"},
	5: {"rref"},
	6: {"autograd", "autograd/dist"},
	7: {"cmd/*", "cmd/tpipe/internal/*", "examples/*", "bench", "bench/autograd", "bench/files", "bench/rpc", "bench/rref", "bench/internal/*", "internal/interop"},
}

// lightPackages must not depend on heavyModules, which only some users need.
var (
	lightPackages = []string{".", "pipe", "agent", "aten", "tensor/ops"}
	heavyModules  = []string{"github.com/ebitengine/purego", "gorgonia.org/cu", "gonum.org/v1"}
)

// layerOf returns the layer of a package, given its name within the module, and true. It returns
// false if the table has no layer for it. An exact name in the table takes precedence over a
// pattern.
func layerOf(name string) (int, bool) {
	found := -1
	for i, names := range layers {
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

// local returns the name of a package within the module, "." for the root, and true. It returns
// false for packages of other modules and of the standard library.
func local(importPath string) (name string, ok bool) {
	if importPath == module {
		return ".", true
	}
	return strings.CutPrefix(importPath, module+"/")
}
