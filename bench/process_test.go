package bench

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

func shell(script string) Program { return Program{Path: "/bin/sh", Args: []string{"-c", script}} }

// TestProcessErrors tests the error of Measure if the server's program prints no JSON or no URL,
// fails, prints nothing, or does not exist. The error of a failed program contains its standard
// error output.
func TestProcessErrors(t *testing.T) {
	for name, c := range map[string]struct{ script, want string }{
		"no JSON":      {"read job; echo hello; cat", `bench: unexpected answer of the second process: process bench server printed "hello"`},
		"no URL":       {"read job; echo '{}'; cat", ErrProtocol.Error()},
		"fails":        {"echo it is broken >&2; exit 3", "process bench server: exit status 3: it is broken"},
		"says nothing": {"exit 0", "process bench server: unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Go{Child: shell(c.script)}.Measure(t.Context(), small(8, true))
			require.ErrorContains(t, err, c.want)
		})
	}
	t.Run("is not there", func(t *testing.T) {
		_, err := Go{Child: Program{Path: "/no/such/program"}}.Measure(t.Context(), small(8, true))
		require.ErrorIs(t, err, os.ErrNotExist)
	})
}

func TestPeerOutput(t *testing.T) {
	s := small(8, true)
	run := func(t *testing.T, client string) error {
		// One script runs as server and as client.
		script := t.TempDir() + "/peer"
		text := "#!/bin/sh\nif [ $1 = server ]; then echo uv://127.0.0.1:1; cat; else " + client + "; fi\n"
		require.NoError(t, os.WriteFile(script, []byte(text), 0o700))
		_, err := Libtensorpipe{}.run(t.Context(), script, s)
		return err
	}
	err := run(t, "echo no samples")
	require.ErrorIs(t, err, ErrProtocol)
	require.ErrorContains(t, err, `process tpbench client printed "no samples"`)
	err = run(t, `echo '{"rtt_ns":[1,2],"messages":70,"one_way_ns":5}'`)
	require.ErrorIs(t, err, ErrProtocol)
	require.ErrorContains(t, err, "2 warm and 0 cold round trips, 70 messages in 5ns; requested were 25, 3 and 70")
	err = run(t, "echo out of luck >&2; exit 1")
	require.EqualError(t, err, "process tpbench client: exit status 1: out of luck")
	err = run(t, "echo no shared memory >&2; exit 3")
	require.ErrorIs(t, asPathError(s, err), ErrPath)
	require.EqualError(t, asPathError(s, err), "uv with basic: process tpbench client: exit status 3: no shared memory")
	err = run(t, "kill -9 $$")
	require.NotErrorIs(t, asPathError(s, err), ErrPath)
	require.EqualError(t, err, "process tpbench client: signal: killed")
}

// TestPeerServerIsKilled tests that if the C++ server is killed, and the client fails because of
// that, the error is that of the server.
func TestPeerServerIsKilled(t *testing.T) {
	script := t.TempDir() + "/peer"
	text := "#!/bin/sh\nif [ $1 = server ]; then echo uv://127.0.0.1:1; kill -9 $$; else echo EOF >&2; exit 1; fi\n"
	require.NoError(t, os.WriteFile(script, []byte(text), 0o700))
	_, err := Libtensorpipe{}.run(t.Context(), script, small(8, true))
	require.EqualError(t, err, "process tpbench server: signal: killed")
}

// TestChildDiesWithItsParent tests that a server process ends when its parent is killed. It notices
// the end of the server because the server's stderr, a pipe that no other process has, is closed.
func TestChildDiesWithItsParent(t *testing.T) {
	self := child(t)
	alive, held, err := os.Pipe()
	require.NoError(t, err)
	defer alive.Close()
	parent := exec.Command("/bin/sh", "-c", `mkfifo "$0/in" && { "$1" <"$0/in" 2>&3 & } ; exec 4>"$0/in"; echo "$2" >&4; read forever`, t.TempDir(), self.Path, serverJob(t))
	parent.Env = append(os.Environ(), self.Env...)
	parent.ExtraFiles = []*os.File{held}
	stdin, err := parent.StdinPipe()
	require.NoError(t, err)
	stdout, err := parent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, parent.Start())
	require.NoError(t, held.Close())

	var info serverInfo
	require.NoError(t, json.NewDecoder(stdout).Decode(&info), "the child is up")
	require.NotEmpty(t, info.URLs)
	require.NoError(t, parent.Process.Kill())
	require.NoError(t, testwait.Finish(t, testwait.Start(func() error {
		_, err := io.Copy(io.Discard, alive)
		return err
	})))
	_ = stdin.Close()
	_ = parent.Wait()
}

func serverJob(t *testing.T) string {
	text, err := json.Marshal(job{Role: roleServer, Spec: small(8, true)})
	require.NoError(t, err)
	return string(text)
}

func TestRunChildRejectsUnknownJobs(t *testing.T) {
	for text, want := range map[string]string{
		"dance\n":                 `job "dance"`,
		`{"role":"dance"}` + "\n": `role "dance"`,
	} {
		in, feed := io.Pipe()
		go io.Copy(feed, strings.NewReader(text))
		err := RunChild(context.Background(), in, io.Discard, nil)
		require.ErrorIs(t, err, ErrProtocol)
		require.ErrorContains(t, err, want)
		feed.Close()
	}
	require.NoError(t, RunChild(context.Background(), strings.NewReader(""), io.Discard, nil), "a parent that has ended is not an error")
}
