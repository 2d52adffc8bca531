package lint

import (
	"fmt"
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// metaphors are words that must not occur in the names of identifiers, files and folders,
// each with the terms to use instead; docs/glossary.md defines these. An entry of several words
// matches them in sequence. Words that also have a standard meaning are not in the table.
var metaphors = map[string]string{
	"anew":      "retry",
	"aside":     "detached, without the lock",
	"bond":      "peer socket",
	"brood":     "children, connections",
	"bury":      "release, remove",
	"cellar":    "lowest layer",
	"crew":      "copy pool, process group",
	"dares":     "allowed",
	"deaf":      "half-closed, not reading",
	"doomed":    "failing, evicted",
	"ear":       "receiver",
	"era":       "epoch, generation",
	"farewell":  "close frame",
	"fate":      "fault, outcome",
	"ferry":     "file transfer",
	"fund":      "quota",
	"guest":     "peer, client",
	"harbour":   "receive server",
	"landing":   "part file",
	"let go":    "release",
	"letterbox": "reactor",
	"look out":  "poll",
	"lookout":   "poll",
	"lure":      "listen, accept",
	"mortal":    "killable",
	"overture":  "offer",
	"parcel":    "frame, message, file",
	"parting":   "close, closing",
	"patience":  "timeout, limit, number of polls",
	"prey":      "peer, target",
	"purse":     "budget, charge",
	"put off":   "enqueue, defer",
	"seat":      "reader registration, contribution",
	"see to":    "handle, serve",
	"seeing":    "introspection, snapshot",
	"shelf":     "key space",
	"shy":       "backing off",
	"shyness":   "backoff",
	"stranger":  "unadmitted peer, unknown connection",
	"strike":    "notify",
	"suffer":    "inject faults",
	"tripper":   "pinger",
	"vigil":     "liveness monitor, prefetched connection, completion counter",
	"welcome":   "server handshake, accept",
	"welcomed":  "accepted",
	"welcomer":  "server handshake",
}

// mayBeNamed lists identifiers that keep such a word, by folder and name, with the reason.
var mayBeNamed = map[string]string{
	"uv.bond": "a bonding network interface",
}

// nameWords splits an identifier or a file name into its words, in lower case. An acronym is one
// word, and so is a sequence of digits.
func nameWords(name string) []string {
	var words []string
	runes := []rune(name)
	start := 0
	flush := func(end int) {
		if end > start {
			words = append(words, strings.ToLower(string(runes[start:end])))
		}
	}
	for i, r := range runes {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) {
			flush(i)
			start = i + 1
			continue
		}
		if i == start {
			continue
		}
		before := runes[i-1]
		switch {
		case unicode.IsDigit(r) != unicode.IsDigit(before),
			unicode.IsUpper(r) && unicode.IsLower(before),
			unicode.IsUpper(r) && i+1 < len(runes) && unicode.IsLower(runes[i+1]):
			flush(i)
			start = i
		}
	}
	flush(len(runes))
	return words
}

// metaphorIn returns the first entry of the table metaphors whose words occur in a name, in the
// singular or the plural. It returns "" if there is none.
func metaphorIn(name string) string {
	words := nameWords(name)
	for i := range words {
		for entry := range metaphors {
			sequence := strings.Fields(entry)
			if i+len(sequence) > len(words) {
				continue
			}
			if slices.EqualFunc(sequence, words[i:i+len(sequence)], sameWord) {
				return entry
			}
		}
	}
	return ""
}

// sameWord reports whether word is entry or the plural of entry.
func sameWord(entry, word string) bool {
	singular := strings.TrimSuffix(strings.TrimSuffix(word, "s"), "e")
	return word == entry || word == entry+"s" || word == entry+"es" ||
		strings.HasSuffix(word, "ies") && strings.TrimSuffix(singular, "i")+"y" == entry
}

// checkName returns a message if a name contains a metaphor that the exceptions do not permit in
// that folder, and otherwise nil. where is the position for the message.
func checkName(where, folder, name string) []string {
	entry := metaphorIn(name)
	if entry == "" || mayBeNamed[folder+"."+name] != "" {
		return nil
	}
	return []string{fmt.Sprintf("%s: %q in %s is a metaphor: use a term of docs/glossary.md (%s)",
		where, entry, name, metaphors[entry])}
}

// fileNameViolations returns a message for a file whose name, or that of a folder in its path,
// contains a metaphor.
func fileNameViolations(file string) []string {
	return checkName(file, path.Dir(file), strings.TrimSuffix(file, path.Ext(file)))
}

// identifierViolations returns a message for each name that a file declares and that contains a
// metaphor. Names that the file only uses are not checked.
func identifierViolations(fset *token.FileSet, name string, file *ast.File) []string {
	var out []string
	check := func(idents ...*ast.Ident) {
		for _, id := range idents {
			if id != nil {
				out = append(out, checkName(fset.Position(id.Pos()).String(), path.Dir(name), id.Name)...)
			}
		}
	}
	checkExprs := func(exprs ...ast.Expr) {
		for _, e := range exprs {
			if id, ok := e.(*ast.Ident); ok {
				check(id)
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.File:
			check(n.Name)
		case *ast.ImportSpec:
			check(n.Name)
		case *ast.FuncDecl:
			check(n.Name)
		case *ast.TypeSpec:
			check(n.Name)
		case *ast.ValueSpec:
			check(n.Names...)
		case *ast.Field: // of structs and interfaces, parameters and results
			check(n.Names...)
		case *ast.LabeledStmt:
			check(n.Label)
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				checkExprs(n.Lhs...)
			}
		case *ast.RangeStmt:
			if n.Tok == token.DEFINE {
				checkExprs(n.Key, n.Value)
			}
		}
		return true
	})
	return out
}

// namedFiles returns the paths of the files whose names are checked, relative to the root of the
// repository: sources in Go, C++, Python and shell.
func namedFiles(t *testing.T) []string {
	t.Helper()
	var out []string
	err := fs.WalkDir(os.DirFS("../.."), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return fs.SkipDir
		}
		if slices.Contains([]string{".go", ".cc", ".c", ".h", ".py", ".sh"}, path.Ext(name)) {
			out = append(out, name)
		}
		return nil
	})
	require.NoError(t, err)
	return out
}

// No name of an identifier or a file contains a metaphor, for which the glossary has a term.
func TestNames(t *testing.T) {
	var all []string
	for _, name := range namedFiles(t) {
		all = append(all, fileNameViolations(name)...)
	}
	for _, name := range sources(t) {
		fset, file := parse(t, name, read(t, name))
		all = append(all, identifierViolations(fset, name, file)...)
	}
	require.Empty(t, all, "%d names", len(all))
}

// Each exception to the rules for names is needed.
func TestNameExceptionsAreCurrent(t *testing.T) {
	used := map[string]bool{}
	for _, name := range sources(t) {
		_, file := parse(t, name, read(t, name))
		ast.Inspect(file, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				used[path.Dir(name)+"."+id.Name] = true
			}
			return true
		})
	}
	for name := range mayBeNamed {
		require.True(t, used[name], "%s does not exist: remove it from the table", name)
		_, id, _ := strings.Cut(name, ".")
		require.NotEmpty(t, metaphorIn(id), "%s contains no metaphor: remove it from the table", name)
	}
}

func TestNameWords(t *testing.T) {
	for name, want := range map[string][]string{
		"":                         nil,
		"x":                        {"x"},
		"vigil":                    {"vigil"},
		"lookOutForIt":             {"look", "out", "for", "it"},
		"HTTPServer":               {"http", "server"},
		"serveHTTP":                {"serve", "http"},
		"mmap2Pages":               {"mmap", "2", "pages"},
		"native_look_out_test":     {"native", "look", "out", "test"},
		"internal/mux/mux_windows": {"internal", "mux", "mux", "windows"},
		"tcp-relay":                {"tcp", "relay"},
	} {
		require.Equal(t, want, nameWords(name), name)
	}
}

func TestMetaphorIn(t *testing.T) {
	for name, want := range map[string]string{
		"newVigil":      "vigil",
		"crews":         "crew",
		"letterboxes":   "letterbox",
		"ferries":       "ferry",
		"lookOut":       "look out",
		"lookOutside":   "",
		"outLook":       "",
		"linear":        "", // contains "ear"
		"year":          "",
		"yearn":         "",
		"refund":        "",
		"SetDeadline":   "",
		"io.Seeker":     "",
		"seekTo":        "",
		"Brochure":      "",
		"Job":           "",
		"READY":         "",
		"forget":        "",
		"operand":       "",
		"earPeer":       "ear",
		"WELCOME_LIMIT": "welcome",
	} {
		require.Equal(t, want, metaphorIn(name), name)
	}
}

func TestIdentifierViolations(t *testing.T) {
	for _, c := range []struct {
		what, src string
		want      string // part of the only violation, "" for none
	}{
		{"function", "func bury() {}", "a.go:3:6: \"bury\" in bury is a metaphor"},
		{"method", "func (t) newFerry() {}", "newFerry"},
		{"receiver", "func (crew t) f() {}", "crew"},
		{"parameter", "func f(fate int) {}", "fate"},
		{"result", "func f() (fate int) { return 0 }", "fate"},
		{"type", "type harbour struct{}", "receive server"},
		{"type parameter", "func f[Guest any]() {}", "Guest"},
		{"field", "type t struct{ shelf int }", "key space"},
		{"interface method", "type t interface{ Strike() }", "notify"},
		{"constant", "const firstLanding = 1", "firstLanding"},
		{"variable", "var a, seat int", "seat"},
		{"short declaration", "func f() { a, purse := 1, 2 }", "purse"},
		{"range", "func f() { for i, parcel := range p {} }", "parcel"},
		{"label", "func f() { anew: for {} }", "anew"},
		{"import", "import vigil \"io\"", "vigil"},
		{"function literal", "var f = func(overture int) {}", "overture"},
		{"use of another package's name", "var x = other.Vigil", ""},
		{"composite literal's key", "var x = other.T{Vigil: 1}", ""},
		{"assignment", "func f() { x.Vigil = 1 }", ""},
		{"comment", "// a vigil\nvar x = \"vigil\"", ""},
		{"clean", "func (c *conn) SetDeadline(t time.Time) error { return nil }", ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			fset, file := parse(t, "a.go", []byte("package p\n\n"+c.src+"\n"))
			got := identifierViolations(fset, "a.go", file)
			if c.want == "" {
				require.Empty(t, got)
				return
			}
			require.Len(t, got, 1)
			require.Contains(t, got[0], c.want)
		})
	}
}

func TestFileNameViolations(t *testing.T) {
	for name, violation := range map[string]bool{
		"pipe/native_writer.go":          false,
		"pipe/native_seek.go":            false,
		"pipe/vigil_test.go":             true,
		"shm/letterbox_linux.go":         true,
		"cmd/tpipe/internal/ferry/io.go": true,
		"pipe/nearby.go":                 false,
		"internal/interop/peer/main.cc":  false,
		"internal/interop/peer/parcel.h": true,
	} {
		require.Equal(t, violation, len(fileNameViolations(name)) == 1, name)
	}
}
