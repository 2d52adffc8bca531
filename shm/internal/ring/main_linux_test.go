package ring_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/shm/internal/ring"
)

// peerVar is the environment variable with the role of a child process, argVar that with its
// argument.
const (
	peerVar = "RING_TEST_PEER"
	argVar  = "RING_TEST_ARG"
)

func TestMain(m *testing.M) {
	name := os.Getenv(peerVar)
	if name == "" {
		leakcheck.Main(m)
	}
	if err := runPeer(name); err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
}

// received is the descriptor of the first file that a child process was given. Each ring is two
// files.
const received = 3

func runPeer(name string) error {
	arg, err := strconv.ParseUint(os.Getenv(argVar), 10, 64)
	if err != nil {
		return err
	}
	return peers[name](arg)
}

// peer returns a command, not started yet, that runs this test binary in the role name with the
// argument arg and the files of the rings. If the command still runs when the test ends, it is
// killed.
func peer(t testing.TB, name string, arg uint64, rings ...*shared) *exec.Cmd {
	t.Helper()
	require.Contains(t, peers, name)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), peerVar+"="+name, fmt.Sprintf("%s=%d", argVar, arg), "GORACE=atexit_sleep_ms=0")
	for _, s := range rings {
		cmd.ExtraFiles = append(cmd.ExtraFiles, s.header.File(), s.data.File())
	}
	cmd.Stderr = os.Stderr
	t.Cleanup(func() {
		if cmd.Process != nil && cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return cmd
}

// shared is a ring in shared memory.
type shared struct {
	*ring.Ring
	header, data *segment.Segment
}

// newShared creates a ring that is closed when the test ends.
func newShared(t testing.TB, size int) *shared {
	t.Helper()
	header, err := segment.Create(ring.HeaderSize)
	require.NoError(t, err)
	data, err := segment.Create(size)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, errors.Join(header.Close(), data.Close())) })
	require.NoError(t, ring.Init(header.Bytes(), size))
	r, err := ring.Open(header.Bytes(), data.Bytes())
	require.NoError(t, err)
	return &shared{Ring: r, header: header, data: data}
}

// mapped maps the ring whose header is in the file with the descriptor fd, and whose data is in the
// one with the next descriptor.
func mapped(fd uintptr) (*shared, error) {
	return mapFiles(os.NewFile(fd, "header"), os.NewFile(fd+1, "data"))
}

// mapFiles maps the ring that consists of these two files. The caller keeps the files and closes
// the segments of the result.
func mapFiles(headerFile, dataFile *os.File) (*shared, error) {
	header, err := segment.Map(headerFile, ring.HeaderSize)
	if err != nil {
		return nil, err
	}
	data, err := segment.Map(dataFile, ring.MaxSize)
	if err != nil {
		return nil, err
	}
	r, err := ring.Open(header.Bytes(), data.Bytes())
	return &shared{Ring: r, header: header, data: data}, err
}

// duplicate returns another descriptor of f, which is closed when the test ends.
func duplicate(t testing.TB, f *os.File) *os.File {
	t.Helper()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	require.NoError(t, err)
	d := os.NewFile(uintptr(fd), f.Name())
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// yield yields the processor to another process.
func yield() { _, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
