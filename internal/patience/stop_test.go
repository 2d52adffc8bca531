package patience

import (
	"io"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a stopped process was told is done when it goes on.
func TestStop(t *testing.T) {
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	Stop(t, cmd.Process)
	said := Start(func() error {
		_, err := out.Read(make([]byte, 1))
		return err
	})
	_, err = io.WriteString(in, "x")
	require.NoError(t, err)
	Asleep(t) // which is long enough for an answer
	require.Empty(t, said)
	require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
	require.NoError(t, Finish(t, said))
}
