package ringnet_test

import (
	"io"
	"net"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// ringsVar tells a child process to answer bells: a bell comes by its third file
// and is answered by its fourth.
const ringsVar = "RINGNET_RINGS"

// BenchmarkDoorbell is the round trip of a bell between processes that sleep: two
// bytes on a socket, or an eventfd for each direction. docs/decisions says what
// came of it.
func BenchmarkDoorbell(b *testing.B) {
	for kind, bells := range map[string]func(testing.TB) (near, far [2]*os.File){
		"socket":  socketBells,
		"eventfd": eventfdBells,
	} {
		b.Run(kind, func(b *testing.B) {
			near, far := bells(b)
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), ringsVar+"="+kind)
			cmd.Stderr = os.Stderr
			cmd.ExtraFiles = far[:]
			require.NoError(b, cmd.Start())
			in, out := openBells(kind, near)
			for b.Loop() {
				require.NoError(b, strike(kind, out))
				require.NoError(b, heard(kind, in))
			}
			require.NoError(b, cmd.Process.Kill())
			_ = cmd.Wait()
			for _, f := range []io.Closer{near[0], near[1], far[0], far[1], in, out} {
				f.Close() // some are the same
			}
		})
	}
}

func socketBells(b testing.TB) (near, far [2]*os.File) {
	one, other := sockets(b)
	a, err := one.File()
	require.NoError(b, err)
	c, err := other.File()
	require.NoError(b, err)
	require.NoError(b, one.Close())
	require.NoError(b, other.Close())
	return [2]*os.File{a, a}, [2]*os.File{c, c}
}

func eventfdBells(b testing.TB) (near, far [2]*os.File) {
	var files [2]*os.File
	for i := range files {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		require.NoError(b, err)
		files[i] = os.NewFile(uintptr(fd), "eventfd")
	}
	return files, [2]*os.File{files[1], files[0]}
}

// openBells makes bells wait in the poller of the runtime.
func openBells(kind string, files [2]*os.File) (in io.ReadCloser, out io.WriteCloser) {
	if kind == "eventfd" {
		return files[0], files[1]
	}
	c, err := net.FileConn(files[0])
	if err != nil {
		panic(err)
	}
	return c, c
}

// sizes are what a bell is in bytes.
var sizes = map[string]int{"socket": 2, "eventfd": 8}

var bell = [8]byte{1}

func strike(kind string, w io.Writer) error {
	_, err := w.Write(bell[:sizes[kind]])
	return err
}

func heard(kind string, r io.Reader) error {
	var p [8]byte
	_, err := r.Read(p[:sizes[kind]])
	return err
}

// answerBells is the other process.
func answerBells(kind string) {
	var files [2]*os.File
	for i := range files {
		fd := 3 + i
		if kind == "eventfd" {
			_ = unix.SetNonblock(fd, true)
		}
		files[i] = os.NewFile(uintptr(fd), kind)
	}
	in, out := openBells(kind, files)
	for heard(kind, in) == nil && strike(kind, out) == nil {
	}
}
