package tensorpipe_test

import (
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/twohosts"
)

// shell is a bash on one of two hosts, whose output goes to the screen that both share.
type shell struct {
	input io.Writer
	*screen
}

// screen is the output of the shells of a test. Its methods may be called concurrently.
type screen struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write appends p to the screen. It never fails.
func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

// after returns the text from offset on, with all numbers replaced by N and tabs and rows of
// spaces by one space.
func (s *screen) after(offset int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return normalized(s.text.String()[offset:])
}

// size returns the number of bytes printed so far.
func (s *screen) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Len()
}

var (
	number = regexp.MustCompile(`\d+(\.\d+)*`)
	blanks = regexp.MustCompile(`[ \t]+`)
)

// normalized returns text with all numbers replaced by N and rows of blanks by one space.
func normalized(text string) string {
	return blanks.ReplaceAllString(number.ReplaceAllString(text, "N"), " ")
}

// newShells starts a bash on each of two hosts, 192.0.2.1 and 192.0.2.2, in a directory in which
// the programs of the guide have been built. The shells and their background
// processes are killed when the test ends.
func newShells(t *testing.T) [2]shell {
	t.Helper()
	if testing.Short() {
		t.Skip("builds the command and executes all commands of a page")
	}
	first, second := twohosts.Isolated(t, "192.0.2.1", "192.0.2.2")
	dir := t.TempDir()
	out, err := exec.Command("go", "build", "-o", dir, "./cmd/tpipe", "./examples/calls", "./examples/http", "./examples/pages", "./examples/refs").CombinedOutput()
	require.NoError(t, err, string(out))
	root, err := os.Getwd()
	require.NoError(t, err)
	require.NoError(t, os.Symlink(filepath.Join(root, "cmd"), filepath.Join(dir, "cmd")))
	shown := &screen{}
	var shells [2]shell
	for i, command := range []func(string, ...string) *exec.Cmd{first, second} {
		c := command("bash")
		c.Dir, c.Stdout, c.Stderr = dir, shown, shown
		stdin, err := c.StdinPipe()
		require.NoError(t, err)
		require.NoError(t, c.Start())
		t.Cleanup(func() {
			_, _ = io.WriteString(stdin, "kill -9 $(jobs -p) 2>/dev/null\n")
			_ = stdin.Close()
			_ = c.Wait()
		})
		shells[i] = shell{stdin, shown}
	}
	return shells
}

// run has the shell execute commands, and returns when they have been executed, or run in the
// background, and the screen shows each line of want. It fails the test if that takes longer than
// 30 seconds.
func (s shell) run(t *testing.T, commands, want string) {
	t.Helper()
	before := s.size()
	_, err := fmt.Fprintf(s.input, "%s\necho executed\n", commands)
	require.NoError(t, err)
	lines := append(strings.Split(strings.TrimSpace(want), "\n"), "executed")
	missing := ""
	shown := func() bool {
		text := s.after(before)
		for _, line := range lines {
			if missing = normalized(line); !strings.Contains(text, missing) {
				return false
			}
		}
		return true
	}
	if !assertEventually(shown, 30*time.Second) {
		t.Fatalf("%s\nprinted\n%s\nwithout the line %q", commands, s.after(before), missing)
	}
}

// assertEventually reports whether condition becomes true within limit.
func assertEventually(condition func() bool, limit time.Duration) bool {
	for end := time.Now().Add(limit); time.Now().Before(end); {
		if condition() {
			return true
		}
		<-time.NewTimer(10 * time.Millisecond).C
	}
	return false
}

var block = regexp.MustCompile("(?s)```(sh|text)\n(.*?)```")

// TestGuide checks that the commands of docs/guide.md, executed one after the other on two hosts,
// print the lines that the page shows. A block of commands that begins with "# second host" is executed
// there. The page makes its certificate with openssl.
func TestGuide(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip(err)
	}
	page, err := os.ReadFile("docs/guide.md")
	require.NoError(t, err)
	blocks := block.FindAllStringSubmatch(string(page), -1)
	require.Greater(t, len(blocks), 20)
	hosts := newShells(t)
	for i, b := range blocks {
		if b[1] == "text" || strings.HasPrefix(b[2], "go build ") { // newShells has built it
			continue
		}
		on, want := hosts[0], ""
		if strings.HasPrefix(b[2], "# second host") {
			on = hosts[1]
		}
		if i+1 < len(blocks) && blocks[i+1][1] == "text" {
			want = blocks[i+1][2]
		}
		on.run(t, b[2], want)
	}
}

// runElsewhere are the commands of README.md that TestReadmeCommands does not run, each with the
// test that does, or the reason.
var runElsewhere = map[string]string{
	"go test ./...":            "the gate",
	"go run ./examples/calls":  "TestCallsByHand, TestCallsBetweenHosts",
	"go run ./cmd/tpipe bench": "TestBench of cmd/tpipe, in less time",
}

// TestReadmeCommands checks that the commands of README.md succeed, executed one after the other.
// A comment that begins with "second host" has a command executed there; servers run in the
// background.
func TestReadmeCommands(t *testing.T) {
	page, err := os.ReadFile("README.md")
	require.NoError(t, err)
	hosts, ran := newShells(t), 0
	for _, b := range block.FindAllStringSubmatch(string(page), -1) {
		for line := range strings.Lines(b[2]) {
			command, comment, _ := strings.Cut(strings.TrimSpace(line), "#")
			if b[1] == "text" || command == "" || slices.ContainsFunc(slices.Collect(maps.Keys(runElsewhere)), func(c string) bool { return strings.HasPrefix(command, c) }) {
				continue
			}
			on := hosts[0]
			if strings.HasPrefix(strings.TrimSpace(comment), "second host") {
				on = hosts[1]
			}
			own := strings.Replace(command, "go run ./cmd/tpipe", "./tpipe", 1)
			require.NotEqual(t, command, own, "no test runs this command")
			switch strings.Fields(own)[1] {
			case "echo":
				on.run(t, own+" &", "listening on")
			case "worker":
				on.run(t, own+" &", "ready as")
			default:
				on.run(t, own+" && echo it succeeded", "it succeeded")
			}
			ran++
		}
	}
	require.Greater(t, ran, 6)
}
