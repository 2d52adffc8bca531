package wait_test

import (
	"io"
	"net"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
)

// pair returns a Reader that waits as c determines, and the two ends of its TCP connection, of
// which it reads the first. They are closed when the test ends.
func pair(t testing.TB, c wait.Config) (*wait.Reader, *net.TCPConn, *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { near.Close() })
	far, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { far.Close() })
	r, err := wait.NewReader(near.(*net.TCPConn), c)
	require.NoError(t, err)
	return r, near.(*net.TCPConn), far.(*net.TCPConn)
}

// configs are the settings with which a Reader must behave in the same way. With the longest spin a
// call is in its spin whatever happens to it.
var configs = map[string]wait.Config{
	"off": {}, "usual": {Spin: wait.Spin}, "long": {Spin: 50 * time.Millisecond},
	"busy": {Spin: wait.Spin, Busy: true}, "only busy": {Busy: true},
}

func withEachConfig(t *testing.T, test func(t *testing.T, r *wait.Reader, near, far *net.TCPConn)) {
	for name, c := range configs {
		t.Run(name, func(t *testing.T) {
			r, near, far := pair(t, c)

			for range 20 {
				echo(t, r, far)
			}
			test(t, r, near, far)
		})
	}
}

func echo(t testing.TB, r io.Reader, far io.Writer) {
	_, err := far.Write([]byte("x"))
	require.NoError(t, err)
	n, err := r.Read(make([]byte, 10))
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

func begin(r io.Reader) <-chan error {
	read := testwait.Start(func() error {
		_, err := r.Read(make([]byte, 1))
		return err
	})
	runtime.Gosched()
	return read
}

func TestReadsEverything(t *testing.T) {
	withEachConfig(t, func(t *testing.T, r *wait.Reader, _, far *net.TCPConn) {
		written := testwait.Start(func() error {
			for i := range 100_000 {
				if _, err := far.Write([]byte{byte(i)}); err != nil {
					return err
				}
			}
			return far.CloseWrite()
		})
		got, err := io.ReadAll(r)
		require.NoError(t, err)
		require.Len(t, got, 100_000)
		for i, b := range got {
			if b != byte(i) {
				require.Equal(t, byte(i), b)
			}
		}
		require.NoError(t, testwait.Finish(t, written))
		_, err = r.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
	})
}

func TestEmptyReadDoesNotWait(t *testing.T) {
	r, _, _ := pair(t, wait.Config{Spin: wait.Spin})
	n, err := r.Read(nil)
	require.NoError(t, err)
	require.Zero(t, n)
}

func TestCloseWakesTheReader(t *testing.T) {
	withEachConfig(t, func(t *testing.T, r *wait.Reader, near, _ *net.TCPConn) {
		read := begin(r)
		require.NoError(t, near.Close())
		require.ErrorIs(t, testwait.Finish(t, read), net.ErrClosed)
	})
}

func TestDeadlines(t *testing.T) {
	withEachConfig(t, func(t *testing.T, r *wait.Reader, near, far *net.TCPConn) {
		for range 3 {
			read := begin(r)
			require.NoError(t, near.SetReadDeadline(time.Unix(1, 0)))
			require.ErrorIs(t, testwait.Finish(t, read), os.ErrDeadlineExceeded)
			require.ErrorIs(t, <-begin(r), os.ErrDeadlineExceeded)
			require.NoError(t, near.SetReadDeadline(time.Time{}))
			echo(t, r, far)
		}
	})
}

// A Reader returns exactly the errors of its socket's Read.
func TestErrorsOfTheSocket(t *testing.T) {
	for name, spoil := range map[string]func(near *net.TCPConn) error{
		"deadline": func(near *net.TCPConn) error { return near.SetReadDeadline(time.Unix(1, 0)) },
		"closed":   (*net.TCPConn).Close,
	} {
		t.Run(name, func(t *testing.T) {
			r, near, _ := pair(t, wait.Config{Spin: wait.Spin})
			require.NoError(t, spoil(near))
			_, want := near.Read(make([]byte, 1))
			_, err := r.Read(make([]byte, 1))
			require.Equal(t, want, err)
		})
	}
}

func TestReset(t *testing.T) {
	r, near, far := pair(t, wait.Config{Spin: wait.Spin})
	require.NoError(t, far.SetLinger(0))
	require.NoError(t, far.Close())
	_, err := r.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.ErrorContains(t, err, near.LocalAddr().String()+"->"+near.RemoteAddr().String())
}

// Each of many Readers that wait at once returns its own result: bytes, the end of the stream, the error of a deadline
// or that of a closed socket.
func TestManyReadersWait(t *testing.T) {
	for _, procs := range []int{1, 4} {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
		const many = 120
		var readers [many]*wait.Reader
		var nears, fars [many]*net.TCPConn
		for i := range readers {
			readers[i], nears[i], fars[i] = pair(t, wait.Config{Busy: true})
		}
		for range 3 {
			var reads [many]<-chan error
			for i, r := range readers {
				reads[i] = testwait.StartBlocked(t, "Read", func() error {
					_, err := r.Read(make([]byte, 1))
					return err
				})
			}
			for i := range reads {
				_, err := fars[i].Write([]byte("x"))
				require.NoError(t, err)
			}
			for i := range reads {
				require.NoError(t, testwait.Finish(t, reads[i]))
			}
		}
		var reads [many]<-chan error
		for i, r := range readers {
			reads[i] = begin(r)
		}
		wants := []error{io.EOF, net.ErrClosed, os.ErrDeadlineExceeded}
		for i := range reads {
			require.NoError(t, []func() error{
				fars[i].CloseWrite, nears[i].Close, func() error { return nears[i].SetReadDeadline(time.Unix(1, 0)) },
			}[i%len(wants)]())
		}
		for i := range reads {
			require.ErrorIs(t, testwait.Finish(t, reads[i]), wants[i%len(wants)])
		}
	}
}

// A read that waits allocates nothing if the process has several processors.
func TestWaitAllocatesNothing(t *testing.T) {
	withEachConfig(t, func(t *testing.T, r *wait.Reader, near, far *net.TCPConn) {
		echoed := testwait.Start(func() error {
			p := make([]byte, 1)
			for {
				if _, err := far.Read(p); err != nil {
					return err
				}
				if _, err := far.Write(p); err != nil {
					return err
				}
			}
		})
		// testing.AllocsPerRun would take all processors but one.
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
		const reads = 500
		var before, after runtime.MemStats
		p := make([]byte, 1)
		runtime.ReadMemStats(&before)
		for range reads {
			if _, err := near.Write(p); err != nil {
				t.Fatal(err)
			}
			if _, err := r.Read(p); err != nil {
				t.Fatal(err)
			}
		}
		runtime.ReadMemStats(&after)
		require.Zero(t, (after.Mallocs-before.Mallocs)/reads)
		require.NoError(t, near.Close())
		require.Error(t, testwait.Finish(t, echoed))
	})
}

func TestNothingIsAllocated(t *testing.T) {
	withEachConfig(t, func(t *testing.T, r *wait.Reader, _, far *net.TCPConn) {
		p := []byte("12345678")
		require.Zero(t, testing.AllocsPerRun(200, func() {
			if _, err := far.Write(p); err != nil {
				panic(err)
			}
			if _, err := r.Read(p); err != nil {
				panic(err)
			}
		}))
	})
}
