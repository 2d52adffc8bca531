package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCompletionInBash checks what bash proposes for command lines, with the script that tpipe
// prints for it.
func TestCompletionInBash(t *testing.T) {
	script := completionScript(t, "bash")
	propose := func(words ...string) []string {
		out := runShell(t, "bash", `source "$1"; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_tpipe
printf '%s\n' "${COMPREPLY[@]}"`, append([]string{"bash", script}, words...)...)
		return strings.Fields(out)
	}
	var commands []string
	for _, e := range entries {
		if e.hidden {
			continue
		}
		commands = append(commands, e.name)
		require.Equal(t, flagNames(e), propose("tpipe", e.name, "-"), e.name)
	}
	require.Equal(t, commands, propose("tpipe", "help", ""))
	require.Equal(t, append(commands, "help"), propose("tpipe", ""))
	for line, want := range map[string]string{
		"tpipe se":                       "send",
		"tpipe send -to":                 "-to",
		"tpipe ping -v -qu":              "",
		"tpipe send -v -qu":              "-quiet",
		"tpipe send -dialect n":          "native",
		"tpipe ping -transport s":        "shm",
		"tpipe ping -channel m":          "mpt_uv",
		"tpipe send -to -":               "", // the value of -to
		"tpipe send weights.safetensors": "", // bash proposes files
		"tpipe completion z":             "zsh",
		"tpipe nothing -":                "",
	} {
		require.Equal(t, want, strings.Join(propose(strings.Fields(line)...), " "), line)
	}
}

// TestCompletionInFish checks what fish proposes for command lines, with the script that tpipe
// prints for it.
func TestCompletionInFish(t *testing.T) {
	script := completionScript(t, "fish")
	for line, want := range map[string]string{
		"tpipe se":              "send",
		"tpipe send -tls-n":     "-tls-name",
		"tpipe send -dialect n": "native",
		"tpipe completion z":    "zsh",
		"tpipe help pr":         "probe",
	} {
		out := runShell(t, "fish", `source $argv[1]; complete -C $argv[2]`, script, line)
		word, _, _ := strings.Cut(strings.TrimSuffix(out, "\n"), "\t") // the description follows
		require.Equal(t, want, word, out)
		require.Equal(t, 1, strings.Count(out, "\n"), out)
	}
}

// TestCompletionInZsh checks that zsh loads the script that tpipe prints for it, and that the script
// describes every command and flag.
func TestCompletionInZsh(t *testing.T) {
	script := completionScript(t, "zsh")
	text, err := os.ReadFile(script)
	require.NoError(t, err)
	for _, e := range entries {
		if e.hidden {
			continue
		}
		require.Contains(t, string(text), "\n\t\t'"+e.name+":"+e.summary+"'\n")
		_, page, _ := strings.Cut(string(text), "\n\t"+e.name+") _arguments")
		page, _, _ = strings.Cut(page, ";;")
		for _, name := range flagNames(e) {
			require.Contains(t, page, "\n\t\t'"+name+"[", e.name)
		}
	}
	out := runShell(t, "zsh", `compdef() { print "compdef $*" }; source $1; whence -w _tpipe`, "zsh", script)
	require.Equal(t, "compdef _tpipe tpipe\n_tpipe: function\n", out)
}

// completionScript writes the script that tpipe prints for shell to a file and returns its path.
func completionScript(t *testing.T, shell string) string {
	t.Helper()
	script, stderr, code := tpipe(t, "completion", shell)
	require.Zero(t, code, stderr)
	path := filepath.Join(t.TempDir(), shell)
	require.NoError(t, os.WriteFile(path, []byte(script), 0o666))
	return path
}

// flagNames returns the flags of e with their dashes, sorted.
func flagNames(e entry) []string {
	names := []string{}
	for _, c := range completable() {
		for _, f := range c.flags {
			if c.name == e.name {
				names = append(names, "-"+f.name)
			}
		}
	}
	return names
}

// runShell runs code with the arguments args in a shell without its usual configuration, and returns
// the output. It skips the test if the shell is not installed.
func runShell(t *testing.T, shell, code string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(shell)
	if err != nil {
		t.Skipf("%s is not installed: %v", shell, err)
	}
	quiet := map[string]string{"bash": "--norc", "zsh": "-f", "fish": "--no-config"}[shell]
	cmd := exec.Command(path, append([]string{quiet, "-c", code}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}
