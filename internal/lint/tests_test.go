package lint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"testing"

	"github.com/stretchr/testify/require"
)

// mayLeak lists the folders whose tests do not call leakcheck.Main, with the reason.
var mayLeak = map[string]string{
	"internal/testutil/leakcheck":            "calls its own Main",
	"tensor/safetensors/internal/crosscheck": "a module of its own that compares two parsers of bytes in memory",
}

// All test packages check for leaked goroutines, and no test calls time.Sleep, except for those in
// the tables.
func TestTests(t *testing.T) {
	folders := map[string][]*ast.File{}
	for _, name := range sources(t) {
		if !isTest(name) {
			continue
		}
		fset, file := parse(t, name, read(t, name))
		require.Empty(t, sleeps(fset, name, file))
		folders[path.Dir(name)] = append(folders[path.Dir(name)], file)
	}
	require.NotEmpty(t, folders)
	for folder, files := range folders {
		require.Empty(t, missingLeakCheck(folder, files))
	}
	for folder := range mayLeak {
		require.Contains(t, folders, folder, "%s has no tests: remove it from the table", folder)
	}
}

func parse(t *testing.T, name string, src []byte) (*token.FileSet, *ast.File) {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	require.NoError(t, err)
	return fset, file
}

// sleeps returns a message for each use of time.Sleep in a file, or none if the file, given by
// name, may sleep.
func sleeps(fset *token.FileSet, name string, file *ast.File) []string {
	var out []string
	ast.Inspect(file, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			checkSleep(sel, name, func(pos token.Pos, format string, args ...any) {
				out = append(out, fmt.Sprintf("%s: %s", fset.Position(pos), fmt.Sprintf(format, args...)))
			})
		}
		return true
	})
	return out
}

// missingLeakCheck returns a message if no TestMain in the test files of a folder calls
// leakcheck.Main, unless the folder is exempt. Otherwise it returns nil.
func missingLeakCheck(folder string, files []*ast.File) []string {
	for _, file := range files {
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "TestMain" && checksLeaks(f) {
				return nil
			}
		}
	}
	if mayLeak[folder] != "" {
		return nil
	}
	return []string{folder + ": no TestMain calls leakcheck.Main: add one, or give a reason in internal/lint/tests_test.go"}
}

// checksLeaks reports whether a function contains a call of leakcheck.Main.
func checksLeaks(f *ast.FuncDecl) bool {
	found := false
	ast.Inspect(f, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if ok && sel.Sel.Name == "Main" {
				pkg, ok := sel.X.(*ast.Ident)
				found = found || ok && pkg.Name == "leakcheck"
			}
		}
		return true
	})
	return found
}

func TestMissingLeakCheck(t *testing.T) {
	for _, c := range []struct {
		what, folder string
		files        []string
		violation    bool
	}{
		{"calls it", "uv", []string{"func TestA() {}", "func TestMain(m *testing.M) { leakcheck.Main(m) }"}, false},
		{"calls it at the end", "uv", []string{"func TestMain(m *testing.M) { if child() { os.Exit(play()) }; leakcheck.Main(m) }"}, false},
		{"no TestMain", "uv", []string{"func TestA() {}", "func TestB() { leakcheck.Check(t) }"}, true},
		{"another Main", "uv", []string{"func TestMain(m *testing.M) { os.Exit(m.Run()) }"}, true},
		{"Main of another package", "uv", []string{"func TestMain(m *testing.M) { other.Main(m) }"}, true},
		{"called elsewhere", "uv", []string{"func TestMain(m *testing.M) { m.Run() }", "func helper() { leakcheck.Main(nil) }"}, true},
		{"only named", "uv", []string{"func TestMain(m *testing.M) { _ = leakcheck.Main }"}, true},
		{"method TestMain", "uv", []string{"func (x) TestMain(m *testing.M) { leakcheck.Main(m) }"}, true},
		{"with a reason", "internal/testutil/leakcheck", []string{"func TestMain(m *testing.M) { Main(m) }"}, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			var files []*ast.File
			for _, src := range c.files {
				_, file := parse(t, "a_test.go", []byte("package p\n\n"+src))
				files = append(files, file)
			}
			require.Equal(t, c.violation, len(missingLeakCheck(c.folder, files)) == 1)
		})
	}
}

func TestSleeps(t *testing.T) {
	const src = "package p\n\nfunc TestA() {\n\ttime.Sleep(1)\n\tclock.Sleep(1)\n\t<-time.After(1)\n}\n"
	fset, file := parse(t, "uv/a_test.go", []byte(src))
	got := sleeps(fset, "uv/a_test.go", file)
	require.Len(t, got, 1)
	require.Contains(t, got[0], "uv/a_test.go:4:2: time.Sleep waits for no event")
	require.Empty(t, sleeps(fset, "tensor/pool_test.go", file), "it has a reason")
}
