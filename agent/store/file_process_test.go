package store

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/flock"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// These variables make this test binary act as another process on the same file.
const (
	roleVar = "STORE_TEST_ROLE"
	pathVar = "STORE_TEST_PATH"
)

// additions is how many times each process adds 1.
const additions = 100

// runRole opens the store in the file at path, performs the role of a child process ("add", "half"
// or "endless") on it, and returns the exit code of the process. It prints an error to stderr.
func runRole(role, path string) int {
	ctx := context.Background()
	s, err := OpenFile(ctx, path, Limits{})
	for range additions {
		if role == "add" && err == nil {
			_, err = s.Add(ctx, "sum", 1)
		}
	}
	switch {
	case err != nil:
	case role == "half":
		err = writeHalf(s)
	case role == "endless":
		err = writeEndless(ctx, s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// writeHalf locks the file of s, writes half a record, prints "ready" and blocks until stdin ends.
// The record stays incomplete and the file locked.
func writeHalf(s *File) error {
	if ok, err := flock.Try(s.f, true); !ok || err != nil {
		return fmt.Errorf("no lock: %w", err)
	}
	b := record{kind: recordSet, key: "key", value: make([]byte, 1000)}.append(nil)
	if _, err := s.f.WriteAt(b[:500], s.offset); err != nil {
		return err
	}
	return waitForEOF()
}

func waitForEOF() error {
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// writeEndless sets a key again and again until the process is killed, and prints "ready" after the
// first time. It returns only if Set fails, with that error.
func writeEndless(ctx context.Context, s *File) error {
	for i := 0; ; i++ {
		if err := s.Set(ctx, "key", bytes.Repeat([]byte{byte(i)}, 100_000)); err != nil {
			return err
		}
		if i == 0 {
			fmt.Println("ready")
		}
	}
}

type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	out   io.ReadCloser
}

func start(t *testing.T, role, path string) process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVar+"="+role, pathVar+"="+path)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	return process{cmd, stdin, out}
}

// kill waits until the process has printed a line, kills it with SIGKILL, and waits for its exit.
// It fails the test unless the line is "ready".
func (p process) kill(t *testing.T) {
	t.Helper()
	line := testwait.Finish(t, testwait.Start(func() string {
		s, _ := bufio.NewReader(p.out).ReadString('\n') // empty if the process failed
		return s
	}))
	require.NoError(t, p.cmd.Process.Kill())
	require.Error(t, p.cmd.Wait())
	require.Equal(t, "ready\n", line)
}

func TestProcessesShareAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	processes := []process{start(t, "add", path), start(t, "add", path), start(t, "add", path)}
	for _, p := range processes {
		require.NoError(t, p.cmd.Wait())
	}
	wantValue(t, opened(t, path), "sum", fmt.Sprint(len(processes)*additions))
}

func TestWriterKilledInTheMiddle(t *testing.T) {
	path, _ := written(t)
	s := opened(t, path)
	start(t, "half", path).kill(t)
	_, err := s.Get(t.Context(), "key")
	require.ErrorIs(t, err, ErrNotFound)
	wantValue(t, s, "a", "2")
	require.NoError(t, s.Set(t.Context(), "a", []byte("3")))
	wantValue(t, s, "a", "3")
	wantValue(t, opened(t, path), "a", "3")
}

func TestWritersKilledAnywhere(t *testing.T) {
	path, _ := written(t)
	s := opened(t, path)
	for range 5 {
		start(t, "endless", path).kill(t)
		value, err := s.Get(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, bytes.Repeat(value[:1], 100_000), value, "one value, and all of it")
		require.NoError(t, s.Set(t.Context(), "a", []byte("3")))
		wantValue(t, s, "a", "3")
	}
}
