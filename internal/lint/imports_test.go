package lint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// node is a package, as go list prints it.
type node struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
	Deps                               []string
}

// No package violates the import rules, as built for Linux and for macOS, since the imports differ.
func TestImportsPointDownwards(t *testing.T) {
	for _, goos := range []string{"linux", "darwin"} {
		t.Run(goos, func(t *testing.T) {
			for _, n := range list(t, goos) {
				require.Empty(t, importViolations(n))
			}
		})
	}
}

// list returns the packages of the module with their imports, as built for the operating system
// goos.
func list(t *testing.T, goos string) []node {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Imports,TestImports,XTestImports,Deps", "./...")
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "GOOS="+goos, "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())

	var nodes []node
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var n node
		if err := dec.Decode(&n); err == io.EOF {
			break
		}
		require.NoError(t, err)
		nodes = append(nodes, n)
	}
	require.NotEmpty(t, nodes)
	return nodes
}

// importViolations returns a message for each violation of the import rules by the package n,
// including its tests.
func importViolations(n node) []string {
	name, _ := local(n.ImportPath)
	layer, known := layerOf(name)
	if !known {
		return []string{fmt.Sprintf("%s is in no layer: add it to the table in internal/lint/layers_test.go", name)}
	}
	var out []string
	for _, imp := range n.Imports {
		out = append(out, checkImport(name, layer, imp)...)
		out = append(out, checkModule(name, imp)...)
	}
	// Conformance suites of layer 1 are tested with implementations, so tests may import
	// packages up to the layer of those, or up to their own.
	for _, imp := range slices.Concat(n.TestImports, n.XTestImports) {
		out = append(out, checkDirection(name+" (test)", max(layer, implementationLayer), imp)...)
	}
	return append(out, checkDependencies(n, name)...)
}

// checkImport returns a message for each rule that an import of the package imp, by product code of
// the package name in that layer, violates.
func checkImport(name string, layer int, imp string) []string {
	if strings.HasPrefix(imp, "golang.org/x/sys") && layer > implementationLayer {
		return []string{fmt.Sprintf("%s imports %s: system calls belong in layer %d or below", name, imp, implementationLayer)}
	}
	out := checkDirection(name, layer, imp)
	target, _ := local(imp)
	if f, ok := layerOf(target); ok && f == implementationLayer {
		switch {
		case name == "pipe":
			out = append(out, fmt.Sprintf("pipe imports the implementation %s: it may import only the contracts", target))
		case layer == implementationLayer:
			out = append(out, fmt.Sprintf("%s imports %s: implementations must not import each other", name, target))
		}
	}
	return out
}

// checkDirection returns a message if the imported package imp is in a higher layer than layer, and
// otherwise nil. name is the importing package.
func checkDirection(name string, layer int, imp string) []string {
	target, ok := local(imp)
	if !ok {
		return nil
	}
	if f, ok := layerOf(target); ok && f > layer {
		return []string{fmt.Sprintf("%s imports %s, which is in layer %d: a package imports only lower layers and its own", name, target, f)}
	}
	return nil
}

// checkDependencies returns a message for each direct or indirect dependency of the package n on a
// heavy module, if it is one of lightPackages. name is its name within the module.
func checkDependencies(n node, name string) []string {
	if !slices.Contains(lightPackages, name) {
		return nil
	}
	var out []string
	for _, dep := range n.Deps {
		for _, h := range heavyModules {
			if dep == h || strings.HasPrefix(dep, h+"/") {
				out = append(out, fmt.Sprintf("%s depends on %s: only packages that users choose may", name, dep))
			}
		}
	}
	return out
}

func TestImportViolations(t *testing.T) {
	in := func(names ...string) []string {
		for i, n := range names {
			names[i] = module + "/" + n
		}
		return names
	}
	for _, c := range []struct {
		what string
		node node
		want string // part of the only violation, "" for none
	}{
		{"downwards", node{ImportPath: module + "/uv", Imports: append(in("transport", "internal/wire"), "net", "golang.org/x/sys/unix")}, ""},
		{"within the lowest layer", node{ImportPath: module + "/tensor", Imports: in("device")}, ""},
		{"root imports implementations", node{ImportPath: module, Imports: in("uv", "pipe", "channel/basic")}, ""},
		{"suite tested with an implementation", node{ImportPath: module + "/transport/transporttest", XTestImports: in("transport/mem")}, ""},
		{"interop imports everything", node{ImportPath: module + "/internal/interop", TestImports: append(in("pipe"), module)}, ""},
		{"upwards", node{ImportPath: module + "/device", Imports: in("transport")}, "device imports transport, which is in layer 1"},
		{"upwards to the root", node{ImportPath: module + "/uv", Imports: []string{module}}, "uv imports ., which is in layer 3"},
		{"test upwards", node{ImportPath: module + "/uv", TestImports: in("pipe")}, "uv (test) imports pipe"},
		{"pipe and implementation", node{ImportPath: module + "/pipe", Imports: in("uv")}, "only the contracts"},
		{"pipe's tests and implementation", node{ImportPath: module + "/pipe", XTestImports: in("uv")}, ""},
		{"implementation and implementation", node{ImportPath: module + "/channel/mpt", Imports: in("uv")}, "must not import each other"},
		{"system calls in a high layer", node{ImportPath: module + "/pipe", Imports: []string{"golang.org/x/sys/unix"}}, "system calls belong"},
		{"heavy", node{ImportPath: module + "/pipe", Deps: []string{"gonum.org/v1/gonum/blas"}}, "pipe depends on gonum.org/v1/gonum/blas"},
		{"heavy where allowed", node{ImportPath: module + "/cudaipc", Deps: []string{"github.com/ebitengine/purego"}}, ""},
		{"unknown", node{ImportPath: module + "/attic"}, "attic is in no layer"},
	} {
		t.Run(c.what, func(t *testing.T) {
			got := importViolations(c.node)
			if c.want == "" {
				require.Empty(t, got)
				return
			}
			require.Len(t, got, 1)
			require.Contains(t, got[0], c.want)
		})
	}
}

func TestLayerOf(t *testing.T) {
	for name, want := range map[string]int{".": 3, "internal/nop": 0, "internal/testutil/simnet": 1, "internal/interop": 7, "cmd/tpipe": 7, "agent/store": 4} {
		got, ok := layerOf(name)
		require.True(t, ok, name)
		require.Equal(t, want, got, name)
	}
	_, ok := layerOf("internal/nop/deep")
	require.False(t, ok)
}
