package channeltest

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRulesAreDocumented checks that each rule that the suite prints is in the comments of package
// channel word for word.
func TestRulesAreDocumented(t *testing.T) {
	docs := comments(t, "..")
	cases := slices.Concat(parityCases, factoryCases, transferCases, abortCases, closeCases, peerLossCases,
		hostileCases, nativeCases, endRecvCases, discardCases)
	for _, c := range streamCases {
		cases = append(cases, testCase{name: c.name, rule: c.rule})
	}
	for _, c := range cases {
		of, rule, found := strings.Cut(c.rule, ": ")
		require.True(t, found && of != "", c.name)
		require.Contains(t, docs, rule, c.name)
	}
}

// comments returns all comments of the Go files in the directory dir, as one line.
func comments(t *testing.T, dir string) string {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	var all strings.Builder
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		require.NoError(t, err)
		for _, c := range f.Comments {
			all.WriteString(c.Text())
		}
	}
	return strings.Join(strings.Fields(all.String()), " ")
}
