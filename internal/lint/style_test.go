package lint

import (
	"fmt"
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// longest is the number of lines that a function may have.
const longest = 80

// maySleep lists the files that may call time.Sleep, with the reason.
var maySleep = map[string]string{
	"internal/leakcheck/usage.go": "waits for the garbage collector and the kernel, which send no signal",

	"channel/mpt/fault_test.go":          simulated,
	"channel/mpt/native_parting_test.go": simulated,
	"channel/mpt/rest_test.go":           simulated,
	"channel/mpt/stuck_test.go":          simulated,

	"cmd/tpipe/internal/ferry/stall_test.go": simulated,

	"device/delayed/delayed_test.go":     simulated,
	"internal/patience/patience_test.go": simulated,
	"internal/simnet/slow_test.go":       simulated,
	"pipe/close_test.go":                 simulated,
	"pipe/progress_test.go":              simulated,
	"tensor/pool_test.go":                simulated,
}

const simulated = "sleeps in a bubble of testing/synctest, where time is simulated"

func TestStyle(t *testing.T) {
	files := 0
	for _, path := range sources(t) {
		if isTest(path) {
			continue
		}
		require.Empty(t, breaches(t, path, read(t, path)))
		files++
	}
	require.NotZero(t, files)
}

func TestSleepersExist(t *testing.T) {
	for path := range maySleep {
		src, err := os.ReadFile(filepath.Join("../..", path))
		require.NoError(t, err, "%s may sleep but is gone: take it off the list", path)
		require.Contains(t, string(src), "time.Sleep(", "%s may sleep but does not: take it off the list", path)
	}
}

// sources lists the Go files of the repository, nested modules included, by
// their paths from its root.
func sources(t *testing.T) []string {
	t.Helper()
	var out []string
	root := os.DirFS("../..")
	err := fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != "." && (strings.HasPrefix(name, ".") || name == "testdata") {
			return fs.SkipDir
		}
		if strings.HasSuffix(name, ".go") {
			out = append(out, path)
		}
		return nil
	})
	require.NoError(t, err)
	return out
}

func isTest(path string) bool { return strings.HasSuffix(path, "_test.go") }

func read(t *testing.T, path string) []byte {
	t.Helper()
	src, err := os.ReadFile(filepath.Join("../..", path))
	require.NoError(t, err)
	return src
}

// breaches lists what a file of product code says that the house does not allow.
func breaches(t *testing.T, path string, src []byte) []string {
	t.Helper()
	fset, file := parse(t, path, src)
	var out []string
	report := func(pos token.Pos, format string, args ...any) {
		out = append(out, fmt.Sprintf("%s: %s", fset.Position(pos), fmt.Sprintf(format, args...)))
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			checkTimer(n, report)
			checkSleep(n, path, report)
		case *ast.FuncDecl:
			checkFunc(fset, n, report)
		}
		return true
	})
	for _, group := range file.Comments {
		for _, c := range group.List {
			checkComment(c, report)
		}
	}
	return out
}

type reporter func(pos token.Pos, format string, args ...any)

// checkTimer refuses timers that nobody can stop: what waits must be woken when
// its caller gives up.
func checkTimer(sel *ast.SelectorExpr, report reporter) {
	if name := sel.Sel.Name; isTime(sel) && (name == "After" || name == "Tick") {
		report(sel.Pos(), "time.%s cannot be stopped: use a timer or a context", name)
	}
}

// checkSleep refuses sleeping: what waits must wait for an event.
func checkSleep(sel *ast.SelectorExpr, path string, report reporter) {
	if isTime(sel) && sel.Sel.Name == "Sleep" && maySleep[path] == "" {
		report(sel.Pos(), "time.Sleep waits for no event: use a channel, or give a reason in internal/lint/style_test.go")
	}
}

func isTime(sel *ast.SelectorExpr) bool {
	pkg, ok := sel.X.(*ast.Ident)
	return ok && pkg.Name == "time"
}

// checkFunc refuses functions that run by being imported, and those that do
// not fit on a screen.
func checkFunc(fset *token.FileSet, f *ast.FuncDecl, report reporter) {
	if f.Recv == nil && f.Name.Name == "init" {
		report(f.Pos(), "init runs behind the reader's back: let the caller ask for it")
	}
	if lines := fset.Position(f.End()).Line - fset.Position(f.Pos()).Line + 1; lines > longest {
		report(f.Pos(), "%s has %d lines (at most %d): split it", f.Name.Name, lines, longest)
	}
}

func checkComment(c *ast.Comment, report reporter) {
	for _, word := range []string{"TODO", "FIXME", "XXX"} {
		if strings.Contains(c.Text, word) {
			report(c.Pos(), "%s: do it, or write it down as a known gap in the documentation", word)
		}
	}
}

func TestBreaches(t *testing.T) {
	body := func(lines int) string {
		return "package p\n\nfunc f() {\n" + strings.Repeat("\tg()\n", lines-2) + "}\n"
	}
	for _, c := range []struct {
		what, path, src string
		want            string // part of the only breach, "" for none
	}{
		{"clean", "a.go", "package p\n\nfunc f() { time.NewTimer(1).Stop() }\n", ""},
		{"After", "a.go", "package p\n\nfunc f() { <-time.After(1) }\n", "a.go:3:14: time.After cannot be stopped"},
		{"Tick", "a.go", "package p\n\nfunc f() { <-time.Tick(1) }\n", "time.Tick cannot be stopped"},
		{"After of another package", "a.go", "package p\n\nfunc f() { now.After(then) }\n", ""},
		{"Sleep", "a.go", "package p\n\nfunc f() { time.Sleep(1) }\n", "time.Sleep waits for no event"},
		{"Sleep with a reason", "internal/leakcheck/usage.go", "package p\n\nfunc f() { time.Sleep(1) }\n", ""},
		{"init", "a.go", "package p\n\nfunc init() {}\n", "init runs"},
		{"method init", "a.go", "package p\n\nfunc (t) init() {}\n", ""},
		{"longest function", "a.go", body(longest), ""},
		{"too long a function", "a.go", body(longest + 1), "f has 81 lines"},
		{"unfinished", "a.go", "package p\n\n// TODO: more\n", "do it"},
	} {
		t.Run(c.what, func(t *testing.T) {
			got := breaches(t, c.path, []byte(c.src))
			if c.want == "" {
				require.Empty(t, got)
				return
			}
			require.Len(t, got, 1)
			require.Contains(t, got[0], c.want)
		})
	}
}
