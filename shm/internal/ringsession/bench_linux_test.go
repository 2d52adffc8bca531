package ringsession_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// BenchmarkStream measures round trips with another process, and the throughput to it.
func BenchmarkStream(b *testing.B) {
	for _, size := range []int{8, 4 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("trip/%dB", size), func(b *testing.B) {
			s, _ := startPeer(b, fmt.Sprint("echo ", size))
			p := make([]byte, size)
			for b.Loop() {
				_, err := s.Write(p)
				require.NoError(b, err)
				_, err = io.ReadFull(s, p)
				require.NoError(b, err)
			}
		})
	}
	b.Run("oneway/1MiB", func(b *testing.B) {
		s, _ := startPeer(b, fmt.Sprint("sink ", 1<<20))
		b.SetBytes(1 << 20)
		p := make([]byte, 16<<20)
		for i := 0; b.Loop(); i++ {
			_, err := s.Write(p[i%16<<20:][:1<<20])
			require.NoError(b, err)
		}
	})
}

// BenchmarkHandleDoorbell measures what a session does for a doorbell while it has that many open
// streams.
func BenchmarkHandleDoorbell(b *testing.B) {
	for _, n := range []int{1, 1000} {
		b.Run(fmt.Sprintf("streams=%d", n), func(b *testing.B) {
			client, server := sessions(b, n)
			for range n {
				open(b, client, server)
			}
			for b.Loop() {
				if err := server.HandleDoorbell(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// echoDoorbellsVar is the environment variable that makes a child process run echoDoorbells: it reads doorbells
// from descriptor 3 and answers them through descriptor 4.
const echoDoorbellsVar = "RINGSESSION_ECHO"

// BenchmarkDoorbell measures the round trip of a doorbell between processes that block: two
// bytes on a socket, or an eventfd for each direction. See docs/decisions for the result.
func BenchmarkDoorbell(b *testing.B) {
	for kind, makeFiles := range map[string]func(testing.TB) (near, far [2]*os.File){
		"socket":  socketDoorbells,
		"eventfd": eventfdDoorbells,
	} {
		b.Run(kind, func(b *testing.B) {
			near, far := makeFiles(b)
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), echoDoorbellsVar+"="+kind)
			cmd.Stderr = os.Stderr
			cmd.ExtraFiles = far[:]
			require.NoError(b, cmd.Start())
			in, out := openDoorbells(kind, near)
			for b.Loop() {
				require.NoError(b, sendDoorbell(kind, out))
				require.NoError(b, receiveDoorbell(kind, in))
			}
			require.NoError(b, cmd.Process.Kill())
			_ = cmd.Wait()
			for _, f := range []io.Closer{near[0], near[1], far[0], far[1], in, out} {
				f.Close() // fails for the second of two that are the same file
			}
		})
	}
}

// socketDoorbells returns, for each of two processes, the files through which it receives and sends
// doorbells. Both files of a process are the same end of a socket.
func socketDoorbells(b testing.TB) (near, far [2]*os.File) {
	one, other := sockets(b)
	a, err := one.File()
	require.NoError(b, err)
	c, err := other.File()
	require.NoError(b, err)
	require.NoError(b, one.Close())
	require.NoError(b, other.Close())
	return [2]*os.File{a, a}, [2]*os.File{c, c}
}

func eventfdDoorbells(b testing.TB) (near, far [2]*os.File) {
	var files [2]*os.File
	for i := range files {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		require.NoError(b, err)
		files[i] = os.NewFile(uintptr(fd), "eventfd")
	}
	return files, [2]*os.File{files[1], files[0]}
}

// openDoorbells returns a reader and a writer of doorbells through the two files. Reads block in
// the runtime's network poller. kind is "eventfd" or another kind, for which the first file is a
// socket.
func openDoorbells(kind string, files [2]*os.File) (in io.ReadCloser, out io.WriteCloser) {
	if kind == "eventfd" {
		return files[0], files[1]
	}
	c, err := net.FileConn(files[0])
	if err != nil {
		panic(err)
	}
	return c, c
}

// doorbellSizes are the sizes of a doorbell in bytes.
var doorbellSizes = map[string]int{"socket": 2, "eventfd": 8}

var doorbell = [8]byte{1}

func sendDoorbell(kind string, w io.Writer) error {
	_, err := w.Write(doorbell[:doorbellSizes[kind]])
	return err
}

func receiveDoorbell(kind string, r io.Reader) error {
	var p [8]byte
	_, err := r.Read(p[:doorbellSizes[kind]])
	return err
}

// echoDoorbells runs the child process, which answers each doorbell by one until its files fail.
func echoDoorbells(kind string) {
	var files [2]*os.File
	for i := range files {
		fd := 3 + i
		if kind == "eventfd" {
			_ = unix.SetNonblock(fd, true)
		}
		files[i] = os.NewFile(uintptr(fd), kind)
	}
	in, out := openDoorbells(kind, files)
	for receiveDoorbell(kind, in) == nil && sendDoorbell(kind, out) == nil {
	}
}
