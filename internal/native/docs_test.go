package native

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const wirePage = "../../docs/wire.md"

// shown lists the frames that docs/wire.md must show at least, one of each kind.
var shown = []string{
	"handshake-brochure", "handshake-answer", "handshake-brochure-probe", "handshake-answer-probe", "message-inline", "message-large", "message-deadline", "message-joined", "message-eager", "message-compressed", "message-inline-checksum",
	"control-want-read", "control-have-read", "control-goodbye", "control-targets", "control-abort", "control-cancel",
	"control-ready", "control-bulk", "control-credit", "control-want-credit", "chunk", "chunk-eager", "chunk-checksum", "chunk-void",
}

// dumpBlock matches a dump in docs/wire.md, whose first line names the frame.
var dumpBlock = regexp.MustCompile("(?s)```dump ([a-z-]+)\n(.*?)```")

// TestDumpsInDocumentation checks that the dumps in docs/wire.md equal the output of Dump.
func TestDumpsInDocumentation(t *testing.T) {
	text, err := os.ReadFile(wirePage)
	require.NoError(t, err)
	all := goldens()
	found := map[string]bool{}
	fresh := dumpBlock.ReplaceAllStringFunc(string(text), func(block string) string {
		name := dumpBlock.FindStringSubmatch(block)[1]
		g, ok := all[name]
		require.True(t, ok, "the page shows %s, which is not in testdata", name)
		found[name] = true
		var out strings.Builder
		require.NoError(t, g.dump(&out, readGolden(t, name)))
		return "```dump " + name + "\n" + out.String() + "```"
	})
	if *update {
		require.NoError(t, os.WriteFile(wirePage, []byte(fresh), 0o644))
	} else {
		require.Equal(t, fresh, string(text), "go test ./internal/native -update writes the dumps")
	}
	for _, name := range shown {
		require.True(t, found[name], "the page does not show %s", name)
	}
}
