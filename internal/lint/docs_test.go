package lint

import (
	"fmt"
	"go/ast"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The doc comment of each function and type begins with its name, so that a rename cannot leave the
// comment of another name behind.
func TestDocComments(t *testing.T) {
	files := 0
	for _, path := range sources(t) {
		require.Empty(t, docViolations(t, path, read(t, path)))
		files++
	}
	require.NotZero(t, files)
}

// docViolations returns a message for each function and type of the file src whose doc comment does
// not begin with its name, which an article may precede. path is for the messages. Functions that
// take a *testing.T or the like are exempt: the comments of tests state assertions.
func docViolations(t *testing.T, path string, src []byte) (out []string) {
	t.Helper()
	fset, file := parse(t, path, src)
	check := func(name *ast.Ident, doc *ast.CommentGroup) {
		text := doc.Text() // "" without a comment
		for _, article := range []string{"A ", "An ", "The "} {
			text = strings.TrimPrefix(text, article)
		}
		words := strings.Fields(text)
		if len(words) > 0 && strings.Trim(words[0], ".,:") != name.Name {
			out = append(out, fmt.Sprintf("%s: the comment of %s begins with %q", fset.Position(name.Pos()), name.Name, words[0]))
		}
	}
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if !takesT(d.Type) && !strings.HasPrefix(d.Name.Name, "Example") {
				check(d.Name, d.Doc)
			}
		case *ast.GenDecl:
			if spec, ok := d.Specs[0].(*ast.TypeSpec); ok && len(d.Specs) == 1 {
				check(spec.Name, d.Doc)
			}
		}
	}
	return out
}

// takesT reports whether a function has a parameter with a type of package testing, such as
// *testing.T.
func takesT(f *ast.FuncType) bool {
	for _, param := range f.Params.List {
		typ := param.Type
		if star, ok := typ.(*ast.StarExpr); ok {
			typ = star.X
		}
		if sel, ok := typ.(*ast.SelectorExpr); ok {
			if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "testing" {
				return true
			}
		}
	}
	return false
}

func TestDocViolations(t *testing.T) {
	for _, c := range []struct {
		what, path, src string
		want            string // part of the only violation, "" for none
	}{
		{"name", "a.go", "package p\n\n// f returns 1.\nfunc f() {}\n", ""},
		{"article", "a.go", "package p\n\n// A T is a type.\ntype T int\n", ""},
		{"no comment", "a.go", "package p\n\nfunc f() {}\n", ""},
		{"other name", "a.go", "package p\n\n// g returns 1.\nfunc f() {}\n", `the comment of f begins with "g"`},
		{"other type", "a.go", "package p\n\n// U is a type.\ntype T int\n", `the comment of T begins with "U"`},
		{"directive", "a.go", "package p\n\n//go:noinline\nfunc f() {}\n", ""},
		{"test", "a_test.go", "package p\n\n// Something works.\nfunc TestF(t *testing.T) {}\n", ""},
		{"example", "a_test.go", "package p\n\n// Something is shown.\nfunc ExampleF() {}\n", ""},
		{"helper of a test", "a_test.go", "package p\n\n// helps\nfunc f() {}\n", `the comment of f begins with "helps"`},
	} {
		t.Run(c.what, func(t *testing.T) {
			got := docViolations(t, c.path, []byte(c.src))
			if c.want == "" {
				require.Empty(t, got)
				return
			}
			require.Len(t, got, 1)
			require.Contains(t, got[0], c.want)
		})
	}
}

// The tests that the documents name exist.
func TestDocumentsNameTests(t *testing.T) {
	defined := map[string]bool{}
	definition := regexp.MustCompile(`(?m)^func (?:\([^)]*\) )?((?:Test|Benchmark|Fuzz)\w+)\(`)
	for _, path := range sources(t) {
		for _, m := range definition.FindAllSubmatch(read(t, path), -1) {
			defined[string(m[1])] = true
		}
	}
	named := 0
	for _, path := range documents(t) {
		for _, name := range testsNamed(string(read(t, path))) {
			require.True(t, isDefined(defined, name), "%s names %s, which does not exist", path, name)
			named++
		}
	}
	require.NotZero(t, named)
}

// documents returns the paths of the Markdown files of the repository, relative to its root, except
// those of past decisions.
func documents(t *testing.T) (out []string) {
	t.Helper()
	err := fs.WalkDir(os.DirFS("../.."), ".", func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || path == "docs/decisions") {
			return fs.SkipDir
		}
		if filepath.Ext(path) == ".md" {
			out = append(out, path)
		}
		return err
	})
	require.NoError(t, err)
	return out
}

var (
	code     = regexp.MustCompile("`[^`\n]+`")
	testName = regexp.MustCompile(`\b(?:Test|Benchmark|Fuzz)[A-Z]\w*(?:\.\.\.)?`)
)

// testsNamed returns the names of tests that occur in the inline code of the document text. A name
// that ends in "..." stands for all tests that begin with it. Patterns of go test -run are left
// out.
func testsNamed(text string) (names []string) {
	for _, span := range code.FindAllString(text, -1) {
		if !strings.Contains(span, "-run") {
			names = append(names, testName.FindAllString(span, -1)...)
		}
	}
	return names
}

func isDefined(defined map[string]bool, name string) bool {
	prefix, isPrefix := strings.CutSuffix(name, "...")
	if !isPrefix {
		return defined[name]
	}
	for d := range defined {
		if strings.HasPrefix(d, prefix) {
			return true
		}
	}
	return false
}

func TestTestsNamed(t *testing.T) {
	require.Equal(t, []string{"TestA", "FuzzB...", "TestC"},
		testsNamed("`pipe/TestA`, `p.FuzzB...` and TestX\n`go test -run TestD`, `TestC`"))
	defined := map[string]bool{"TestAll": true}
	require.True(t, isDefined(defined, "TestAll"))
	require.True(t, isDefined(defined, "TestA..."))
	require.False(t, isDefined(defined, "TestA"))
	require.False(t, isDefined(defined, "TestB..."))
}
