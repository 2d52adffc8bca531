package lint

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// welcome lists the modules that product code may import beside the standard
// library and this one. Each is a burden for every user.
var welcome = []string{"golang.org/x/sys", "github.com/libp2p/go-yamux/v4", "github.com/klauspost/compress"}

// support lists the packages that no program links, because they are what tests
// are written with, and the modules that each may import for that.
var support = map[string]struct {
	reason  string
	modules []string
}{
	"transport/transporttest": {"a suite of tests", []string{"github.com/stretchr/testify", "golang.org/x/net"}},
	"channel/channeltest":     {"a suite of tests", []string{"github.com/stretchr/testify"}},
	"agent/store/storetest":   {"a suite of tests", []string{"github.com/stretchr/testify"}},
	"internal/leakcheck":      {"the TestMain of all packages", []string{"go.uber.org/goleak"}},
	"internal/team":           {"tests in several processes", nil},
	"internal/alone":          {"tests that spoil their process", nil},
}

// foreign reports an import of product code from a module that is not welcome.
func foreign(name, imp string) []string {
	if _, ok := local(imp); ok || isStandard(imp) {
		return nil
	}
	if slices.ContainsFunc(slices.Concat(welcome, support[name].modules), within(imp)) {
		return nil
	}
	return []string{fmt.Sprintf("%s imports %s: product code makes do with the standard library; internal/lint/foreign_test.go lists what else is welcome", name, imp)}
}

// isStandard goes by the rule that other modules begin with a domain. C is the
// import of cgo and no package.
func isStandard(imp string) bool {
	first, _, _ := strings.Cut(imp, "/")
	return imp != "C" && !strings.Contains(first, ".")
}

// within returns whether imp is a package of a module.
func within(imp string) func(module string) bool {
	return func(module string) bool {
		return module != "" && (imp == module || strings.HasPrefix(imp, module+"/"))
	}
}

func TestForeign(t *testing.T) {
	for _, c := range []struct {
		name, imp string
		fault     bool
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
		{"internal/leakcheck", "go.uber.org/goleak", false},
	} {
		t.Run(c.name+" "+c.imp, func(t *testing.T) {
			require.Equal(t, c.fault, len(faults(node{ImportPath: module + "/" + c.name, Imports: []string{c.imp}})) > 0)
		})
	}
}

// Packages on the list are linked by tests alone, and need their place there.
func TestSupportIsUsedByTestsOnly(t *testing.T) {
	used := map[string]bool{} // by guest and module
	for _, n := range list(t, "linux") {
		name, _ := local(n.ImportPath)
		for _, module := range support[name].modules {
			imports := func(imp string) bool { return within(imp)(module) }
			used[name+" "+module] = slices.ContainsFunc(n.Imports, imports)
		}
		for guest := range support {
			_, alsoSupport := support[name]
			require.False(t, !alsoSupport && slices.Contains(n.Deps, module+"/"+guest), "%s depends on %s, which is for tests", name, guest)
		}
	}
	for guest, s := range support {
		for _, module := range s.modules {
			require.True(t, used[guest+" "+module], "%s does not import %s: take it off the list", guest, module)
		}
	}
}
