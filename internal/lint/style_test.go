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

// maxFuncLines is the maximum number of lines of a function of product code.
const maxFuncLines = 60

// mayCallSleep lists the files that may call time.Sleep, with the reason.
var mayCallSleep = map[string]string{
	"internal/testutil/leakcheck/usage.go": "waits for the garbage collector and the kernel, which signal no completion",

	"channel/mpt/fault_test.go":        inVirtualTime,
	"channel/mpt/native_close_test.go": inVirtualTime,
	"channel/mpt/native_idle_test.go":  inVirtualTime,
	"channel/mpt/slow_close_test.go":   inVirtualTime,

	"cmd/tpipe/internal/filetransfer/stall_test.go": inVirtualTime,

	"device/delayed/delayed_test.go":              inVirtualTime,
	"internal/deadline/deadline_test.go":          inVirtualTime,
	"internal/testutil/testwait/testwait_test.go": inVirtualTime,
	"internal/testutil/simnet/slow_test.go":       inVirtualTime,
	"pipe/close_test.go":                          inVirtualTime,
	"pipe/progress_test.go":                       inVirtualTime,
	"tensor/pool_test.go":                         inVirtualTime,
}

const inVirtualTime = "sleeps in a bubble of testing/synctest, where time is virtual"

func TestStyle(t *testing.T) {
	files := 0
	for _, path := range sources(t) {
		if isTest(path) {
			continue
		}
		require.Empty(t, styleViolations(t, path, read(t, path)))
		files++
	}
	require.NotZero(t, files)
}

func TestSleepTableIsCurrent(t *testing.T) {
	for path := range mayCallSleep {
		src, err := os.ReadFile(filepath.Join("../..", path))
		require.NoError(t, err, "%s does not exist: remove it from the table", path)
		require.Contains(t, string(src), "time.Sleep(", "%s does not call time.Sleep: remove it from the table", path)
	}
}

// sources returns the paths of the Go files of the repository, relative to its root, including
// those of nested modules.
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

// styleViolations returns a message for each violation of the style rules in the file src of
// product code. path is for the messages and the exceptions.
func styleViolations(t *testing.T, path string, src []byte) []string {
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

// checkTimer reports a use of time.After or time.Tick, which cannot be stopped: a blocked call must
// wake when its caller cancels it.
func checkTimer(sel *ast.SelectorExpr, report reporter) {
	if name := sel.Sel.Name; isTime(sel) && (name == "After" || name == "Tick") {
		report(sel.Pos(), "time.%s cannot be stopped: use a timer or a context", name)
	}
}

// checkSleep reports a use of time.Sleep, unless the file with that path may sleep: code must wait
// for an event.
func checkSleep(sel *ast.SelectorExpr, path string, report reporter) {
	if isTime(sel) && sel.Sel.Name == "Sleep" && mayCallSleep[path] == "" {
		report(sel.Pos(), "time.Sleep waits for no event: use a channel, or give a reason in internal/lint/style_test.go")
	}
}

func isTime(sel *ast.SelectorExpr) bool {
	pkg, ok := sel.X.(*ast.Ident)
	return ok && pkg.Name == "time"
}

// checkFunc reports f if it is an init function or has more than maxFuncLines lines.
func checkFunc(fset *token.FileSet, f *ast.FuncDecl, report reporter) {
	if f.Recv == nil && f.Name.Name == "init" {
		report(f.Pos(), "init runs implicitly: export a function for the caller to call")
	}
	if lines := fset.Position(f.End()).Line - fset.Position(f.Pos()).Line + 1; lines > maxFuncLines {
		report(f.Pos(), "%s has %d lines (at most %d): split it", f.Name.Name, lines, maxFuncLines)
	}
}

func checkComment(c *ast.Comment, report reporter) {
	for _, word := range []string{"TODO", "FIXME", "XXX"} {
		if strings.Contains(c.Text, word) {
			report(c.Pos(), "%s: do it, or document it as a known gap", word)
		}
	}
}

func TestStyleViolations(t *testing.T) {
	body := func(lines int) string {
		return "package p\n\nfunc f() {\n" + strings.Repeat("\tg()\n", lines-2) + "}\n"
	}
	for _, c := range []struct {
		what, path, src string
		want            string // part of the only violation, "" for none
	}{
		{"clean", "a.go", "package p\n\nfunc f() { time.NewTimer(1).Stop() }\n", ""},
		{"After", "a.go", "package p\n\nfunc f() { <-time.After(1) }\n", "a.go:3:14: time.After cannot be stopped"},
		{"Tick", "a.go", "package p\n\nfunc f() { <-time.Tick(1) }\n", "time.Tick cannot be stopped"},
		{"After of another package", "a.go", "package p\n\nfunc f() { now.After(then) }\n", ""},
		{"Sleep", "a.go", "package p\n\nfunc f() { time.Sleep(1) }\n", "time.Sleep waits for no event"},
		{"Sleep with a reason", "internal/testutil/leakcheck/usage.go", "package p\n\nfunc f() { time.Sleep(1) }\n", ""},
		{"init", "a.go", "package p\n\nfunc init() {}\n", "init runs"},
		{"method init", "a.go", "package p\n\nfunc (t) init() {}\n", ""},
		{"longest function", "a.go", body(maxFuncLines), ""},
		{"too long a function", "a.go", body(maxFuncLines + 1), "f has 61 lines"},
		{"unfinished", "a.go", "package p\n\n// TODO: more\n", "do it"},
	} {
		t.Run(c.what, func(t *testing.T) {
			got := styleViolations(t, c.path, []byte(c.src))
			if c.want == "" {
				require.Empty(t, got)
				return
			}
			require.Len(t, got, 1)
			require.Contains(t, got[0], c.want)
		})
	}
}
