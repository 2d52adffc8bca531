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

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// node is a package as go list describes it.
type node struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
	Deps                               []string
}

// The tree differs by platform: each must keep the rules.
func TestImportsPointDownwards(t *testing.T) {
	for _, goos := range []string{"linux", "darwin"} {
		t.Run(goos, func(t *testing.T) {
			for _, n := range list(t, goos) {
				require.Empty(t, faults(n))
			}
		})
	}
}

// list asks the go command for the packages of the module and all they need.
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

// faults lists what is wrong with the imports of one package.
func faults(n node) []string {
	name, _ := local(n.ImportPath)
	level, known := floor(name)
	if !known {
		return []string{fmt.Sprintf("%s has no place in the house: add it to the table in internal/lint/house_test.go", name)}
	}
	var out []string
	for _, imp := range n.Imports {
		out = append(out, judge(name, level, imp)...)
		out = append(out, foreign(name, imp)...)
	}
	// Suites on floor 1 prove themselves on implementations, so tests may see
	// up to that floor; nobody's tests see what is built on top of him.
	for _, imp := range slices.Concat(n.TestImports, n.XTestImports) {
		out = append(out, above(name+" (test)", max(level, implementations), imp)...)
	}
	return append(out, weight(n, name)...)
}

// judge holds one import of product code against the rules.
func judge(name string, level int, imp string) []string {
	if strings.HasPrefix(imp, "golang.org/x/sys") && level > implementations {
		return []string{fmt.Sprintf("%s imports %s: system calls belong on floor %d or below", name, imp, implementations)}
	}
	out := above(name, level, imp)
	target, _ := local(imp)
	if f, ok := floor(target); ok && f == implementations {
		switch {
		case name == "pipe":
			out = append(out, fmt.Sprintf("pipe imports the implementation %s: it knows only the seams", target))
		case level == implementations:
			out = append(out, fmt.Sprintf("%s imports %s: implementations do not know each other", name, target))
		}
	}
	return out
}

// above reports an import that points upwards.
func above(name string, level int, imp string) []string {
	target, ok := local(imp)
	if !ok {
		return nil
	}
	if f, ok := floor(target); ok && f > level {
		return []string{fmt.Sprintf("%s imports %s, which is on floor %d: imports point only downwards", name, target, f)}
	}
	return nil
}

// weight reports heavy dependencies, near or far, of a lean package.
func weight(n node, name string) []string {
	if !slices.Contains(lean, name) {
		return nil
	}
	var out []string
	for _, dep := range n.Deps {
		for _, h := range heavy {
			if dep == h || strings.HasPrefix(dep, h+"/") {
				out = append(out, fmt.Sprintf("%s depends on %s: only those who ask for it may carry it", name, dep))
			}
		}
	}
	return out
}

func TestFaults(t *testing.T) {
	in := func(names ...string) []string {
		for i, n := range names {
			names[i] = module + "/" + n
		}
		return names
	}
	for _, c := range []struct {
		what string
		node node
		want string // part of the only fault, "" for none
	}{
		{"downwards", node{ImportPath: module + "/uv", Imports: append(in("transport", "internal/wire"), "net", "golang.org/x/sys/unix")}, ""},
		{"sideways on the ground floor", node{ImportPath: module + "/tensor", Imports: in("device")}, ""},
		{"root wires implementations", node{ImportPath: module, Imports: in("uv", "pipe", "channel/basic")}, ""},
		{"suite tested on an implementation", node{ImportPath: module + "/transport/transporttest", XTestImports: in("transport/mem")}, ""},
		{"interop drives everything", node{ImportPath: module + "/internal/interop", TestImports: append(in("pipe"), module)}, ""},
		{"upwards", node{ImportPath: module + "/device", Imports: in("transport")}, "device imports transport, which is on floor 1"},
		{"upwards to the root", node{ImportPath: module + "/uv", Imports: []string{module}}, "uv imports ., which is on floor 3"},
		{"test upwards", node{ImportPath: module + "/uv", TestImports: in("pipe")}, "uv (test) imports pipe"},
		{"pipe and implementation", node{ImportPath: module + "/pipe", Imports: in("uv")}, "knows only the seams"},
		{"pipe's tests and implementation", node{ImportPath: module + "/pipe", XTestImports: in("uv")}, ""},
		{"implementation and implementation", node{ImportPath: module + "/channel/mpt", Imports: in("uv")}, "do not know each other"},
		{"system calls high up", node{ImportPath: module + "/pipe", Imports: []string{"golang.org/x/sys/unix"}}, "system calls belong"},
		{"heavy", node{ImportPath: module + "/pipe", Deps: []string{"gonum.org/v1/gonum/blas"}}, "pipe depends on gonum.org/v1/gonum/blas"},
		{"heavy where wanted", node{ImportPath: module + "/cudaipc", Deps: []string{"github.com/ebitengine/purego"}}, ""},
		{"unknown", node{ImportPath: module + "/attic"}, "attic has no place in the house"},
	} {
		t.Run(c.what, func(t *testing.T) {
			got := faults(c.node)
			if c.want == "" {
				require.Empty(t, got)
				return
			}
			require.Len(t, got, 1)
			require.Contains(t, got[0], c.want)
		})
	}
}

func TestFloor(t *testing.T) {
	for name, want := range map[string]int{".": 3, "internal/nop": 0, "internal/simnet": 1, "internal/interop": 7, "cmd/tpipe": 7, "agent/store": 4} {
		got, ok := floor(name)
		require.True(t, ok, name)
		require.Equal(t, want, got, name)
	}
	_, ok := floor("internal/nop/deep")
	require.False(t, ok)
}
