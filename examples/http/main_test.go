package main

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/shm"
)

// asCommand is the environment variable that makes the test program run as the command.
const asCommand = "EXAMPLE_HTTP"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
		return
	}
	leakcheck.Main(m)
}

// command returns a command that runs the example with args as a process of this test binary. The
// caller starts the command, which is killed when the test ends.
func command(t *testing.T, args ...string) *exec.Cmd {
	c := exec.CommandContext(t.Context(), os.Args[0], args...)
	c.Env = append(os.Environ(), asCommand+"=1")
	c.Stderr = os.Stderr
	return c
}

// TestHTTP runs the commands of the package's comment, with fewer requests, and checks that all
// requests are answered, over the path that the server offers.
func TestHTTP(t *testing.T) {
	for transport, more := range map[string]string{"uv": "", "shm": ",shm://"} {
		t.Run(transport, func(t *testing.T) {
			if err := shm.New().Viable(); transport == "shm" && err != nil {
				t.Skip(err)
			}
			plain := freeport.Addr(t)
			server := command(t, "-listen", "uv://127.0.0.1:0"+more, "-plain", plain)
			out, err := server.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, server.Start())
			t.Cleanup(func() {
				_ = server.Process.Kill()
				_ = server.Wait()
			})
			line, err := bufio.NewReader(out).ReadString('\n')
			require.NoError(t, err)
			url, found := strings.CutPrefix(strings.TrimSpace(line), "serving at ")
			require.True(t, found, line)

			printed, err := command(t, "-to", url, "-plain", plain, "-requests", "20", "-size", "300000").Output()
			require.NoError(t, err)
			require.Regexp(t, "^tensorpipe over "+transport+": 20 requests for 300000 bytes, [0-9.]+[mµ]?s each\n"+
				"package net over TCP: 20 requests for 300000 bytes, [0-9.]+[mµ]?s each\n$", string(printed))
		})
	}
}

// TestWrongArguments checks that the command exits with an error in one line if it has neither a
// server's nor a client's arguments, or if no server answers.
func TestWrongArguments(t *testing.T) {
	for _, args := range [][]string{{}, {"-to", "uv://" + freeport.Addr(t)}, {"-listen", "nowhere"}} {
		c := command(t, args...)
		var failed strings.Builder
		c.Stderr = &failed
		require.Error(t, c.Run())
		require.Equal(t, 1, strings.Count(failed.String(), "\n"), failed.String())
	}
}
