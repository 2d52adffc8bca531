package lint

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// allowedModules are the modules that product code may import in addition to the standard library
// and this module. Each is a dependency of every user.
var allowedModules = []string{"golang.org/x/sys", "github.com/libp2p/go-yamux/v4", "github.com/klauspost/compress"}

// moduleOnlyIn lists the packages that may import further modules. A program that does not import such
// a package does not depend on its modules.
var moduleOnlyIn = map[string][]string{
	"tensor/ops/gonumblas": {"gonum.org/v1/gonum"},
	"cudaipc/driver":       {"github.com/ebitengine/purego"},
}

// testOnly lists the packages that only tests import, and the modules that each of them may import
// in addition to allowedModules.
var testOnly = map[string]struct {
	reason  string
	modules []string
}{
	"transport/transporttest":      {"a conformance suite", []string{"github.com/stretchr/testify", "golang.org/x/net"}},
	"channel/channeltest":          {"a conformance suite", []string{"github.com/stretchr/testify"}},
	"agent/store/storetest":        {"a conformance suite", []string{"github.com/stretchr/testify"}},
	"cudaipc/cusim":                {"a simulated driver", []string{"github.com/ebitengine/purego"}},
	"cudaipc/driver/drivertest":    {"a conformance suite", []string{"github.com/stretchr/testify"}},
	"internal/testutil/cudagroup":  {"workers with simulated GPUs", []string{"github.com/stretchr/testify"}},
	"internal/testutil/drops":      {"tests on the simulated driver", nil},
	"internal/testutil/leakcheck":  {"the TestMain of all packages", []string{"go.uber.org/goleak"}},
	"internal/testutil/procgroup":  {"tests in several processes", nil},
	"internal/testutil/subprocess": {"tests that change their process for good", nil},
}

// checkModule returns a message if product code of the package name may not import the package imp
// because of its module, and otherwise nil.
func checkModule(name, imp string) []string {
	if _, ok := local(imp); ok || isStandard(imp) {
		return nil
	}
	if slices.ContainsFunc(slices.Concat(allowedModules, moduleOnlyIn[name], testOnly[name].modules), within(imp)) {
		return nil
	}
	return []string{fmt.Sprintf("%s imports %s: product code imports only the standard library and the modules that internal/lint/modules_test.go lists", name, imp)}
}

// isStandard reports whether imp is a package of the standard library: its first element has no
// dot, and it is not the import "C" of cgo.
func isStandard(imp string) bool {
	first, _, _ := strings.Cut(imp, "/")
	return imp != "C" && !strings.Contains(first, ".")
}

// within returns a function that reports whether the package imp belongs to a module.
func within(imp string) func(module string) bool {
	return func(module string) bool {
		return module != "" && (imp == module || strings.HasPrefix(imp, module+"/"))
	}
}

func TestModules(t *testing.T) {
	for _, c := range []struct {
		name, imp string
		violation bool
	}{
		{"uv", "net/netip", false},
		{"uv", module + "/device", false},
		{"pipe", module, false},
		{"uv", "golang.org/x/sys/unix", false},
		{"uv", "golang.org/x/system", true},
		{"uv", "golang.org/x/net/proxy", true},
		{"pipe", module + "2/pipe", true},
		{"pipe", "github.com/stretchr/testify/require", true},
		{"pipe", "go.uber.org/goleak", true},
		{"shm", "C", true},
		{"transport/transporttest", "github.com/stretchr/testify/require", false},
		{"transport/transporttest", "go.uber.org/goleak", true},
		{"transport/transporttest/deep", "github.com/stretchr/testify/require", true},
		{"internal/testutil/leakcheck", "go.uber.org/goleak", false},
		{"tensor/ops/gonumblas", "gonum.org/v1/gonum/blas", false},
		{"tensor/ops", "gonum.org/v1/gonum/blas", true},
	} {
		t.Run(c.name+" "+c.imp, func(t *testing.T) {
			require.Equal(t, c.violation, len(importViolations(node{ImportPath: module + "/" + c.name, Imports: []string{c.imp}})) > 0)
		})
	}
}

// No program imports the packages of the table testOnly, and each of them imports only the modules
// that the table permits.
func TestTestOnlyPackages(t *testing.T) {
	used := map[string]bool{} // by package and module
	for _, n := range list(t, "linux") {
		name, _ := local(n.ImportPath)
		for _, module := range testOnly[name].modules {
			imports := func(imp string) bool { return within(imp)(module) }
			used[name+" "+module] = slices.ContainsFunc(n.Imports, imports)
		}
		for testPackage := range testOnly {
			_, importerIsTestOnly := testOnly[name]
			require.False(t, !importerIsTestOnly && slices.Contains(n.Deps, module+"/"+testPackage), "%s depends on %s, which is for tests only", name, testPackage)
		}
	}
	for testPackage, s := range testOnly {
		for _, module := range s.modules {
			require.True(t, used[testPackage+" "+module], "%s does not import %s: remove it from the table", testPackage, module)
		}
	}
}
