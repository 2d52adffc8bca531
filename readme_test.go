package tensorpipe_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadmeShowsTheExamples checks that each block of Go code in README.md is part of an example
// under examples, which is compiled and run.
func TestReadmeShowsTheExamples(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	var source []byte
	for _, name := range []string{"calls", "hello"} {
		text, err := os.ReadFile(filepath.Join("examples", name, "main.go"))
		require.NoError(t, err)
		source = append(source, text...)
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(readme, -1)
	require.NotEmpty(t, blocks)
	for _, block := range blocks {
		require.Contains(t, string(source), string(block[1]))
	}
}

var code = regexp.MustCompile("(?s)```.*?```")

var link = regexp.MustCompile(`\]\(([^)#\s]+)[^)]*\)`)

// TestDocumentLinks checks that each relative link in README.md and docs refers to an existing
// file.
func TestDocumentLinks(t *testing.T) {
	links := 0
	for _, page := range documents(t) {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, found := range link.FindAllSubmatch(code.ReplaceAll(text, nil), -1) {
			target := string(found[1])
			if strings.Contains(target, "://") {
				continue
			}
			links++
			_, err := os.Stat(filepath.Join(filepath.Dir(page), target))
			require.NoError(t, err, "%s has a link to %s", page, target)
		}
	}
	require.Greater(t, links, 5, "the documents contain links")
}

// documents returns the paths of README.md and of all Markdown files under docs.
func documents(t *testing.T) []string {
	pages := []string{"README.md"}
	require.NoError(t, filepath.WalkDir("docs", func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".md" {
			pages = append(pages, path)
		}
		return err
	}))
	return pages
}

var testName = regexp.MustCompile(`\bTest[A-Z]\w*`)

// TestFaultsAreTested checks that each test that docs/faults.md names exists in this module. A name
// in the document may be the common prefix of several tests.
func TestFaultsAreTested(t *testing.T) {
	page, err := os.ReadFile("docs/faults.md")
	require.NoError(t, err)
	var tests strings.Builder
	require.NoError(t, filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, "_test.go") {
			source, err := os.ReadFile(path)
			tests.Write(source)
			return err
		}
		return err
	}))
	names := testName.FindAllString(string(page), -1)
	require.Greater(t, len(names), 40)
	for _, name := range names {
		require.Contains(t, tests.String(), "func "+name, "docs/faults.md")
	}
}
