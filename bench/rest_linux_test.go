package bench

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
)

// asEcho is the environment variable that makes this test program run as a process that sends 8
// bytes back again and again: through two eventfds, or over TCP to the address in it.
const asEcho = "TENSORPIPE_BENCH_ECHO"

const byEventfd = "eventfd"

func init() {
	if kind := os.Getenv(asEcho); kind != "" {
		runEcho(kind)
	}
}

// runEcho sends 8 bytes back until the other process, or its stdin, ends. Then it exits.
func runEcho(kind string) {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	in, out, err := echoEnds(kind)
	p := make([]byte, 8)
	for err == nil {
		if _, err = io.ReadFull(in, p); err == nil {
			_, err = out.Write(p)
		}
	}
	os.Exit(0)
}

// echoEnds returns the ends of a process of that kind. Both block in the network poller.
func echoEnds(kind string) (in io.Reader, out io.Writer, err error) {
	if kind != byEventfd {
		c, err := net.Dial("tcp", kind)
		return c, c, err
	}
	return polledFile(3), polledFile(4), nil
}

func polledFile(fd int) *os.File {
	_ = unix.SetNonblock(fd, true)
	return os.NewFile(uintptr(fd), byEventfd)
}

// startEcho starts a process that sends back 8 bytes, of that kind, and gives it the files from descriptor 3 on. It
// closes the files here. The process ends with the benchmark.
func startEcho(b *testing.B, kind string, files ...*os.File) {
	path, err := os.Executable()
	require.NoError(b, err)
	cmd := exec.Command(path)
	cmd.Env, cmd.ExtraFiles = append(os.Environ(), asEcho+"="+kind), files
	stdin, err := cmd.StdinPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	b.Cleanup(func() {
		require.NoError(b, stdin.Close())
		require.NoError(b, cmd.Wait())
	})
	for _, f := range files {
		require.NoError(b, f.Close())
	}
}

// startEventfdEcho starts a process that sends back 8 bytes through two eventfds, and returns these.
func startEventfdEcho(b *testing.B) (in io.Reader, out io.Writer) {
	var fds [2]int
	var files []*os.File // for the process
	for i := range fds {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		require.NoError(b, err)
		files = append(files, os.NewFile(uintptr(fd), byEventfd))
		fds[i], err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		require.NoError(b, err)
	}
	startEcho(b, byEventfd, files...)
	from, to := polledFile(fds[1]), polledFile(fds[0])
	b.Cleanup(func() { from.Close(); to.Close() })
	return from, to
}

// startTCPEcho starts a process that sends back 8 bytes over TCP, and returns the connection to it.
func startTCPEcho(b *testing.B) net.Conn {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	defer l.Close()
	startEcho(b, l.Addr().String())
	c, err := l.Accept()
	require.NoError(b, err)
	b.Cleanup(func() { c.Close() })
	return c
}

// restTrips is the number of round trips of a process, each after a rest.
const restTrips = 200

// bareAfterRest returns the percentiles of round trips of 8 bytes between two processes that do nothing else,
// each after a rest.
func bareAfterRest(b *testing.B, in io.Reader, out io.Writer) *Result {
	var took []time.Duration
	p := []byte{1, 0, 0, 0, 0, 0, 0, 0}
	for range restTrips {
		<-time.NewTimer(Spec{}.withDefaults().Idle).C
		start := time.Now()
		_, err := out.Write(p)
		require.NoError(b, err)
		_, err = io.ReadFull(in, p)
		require.NoError(b, err)
		took = append(took, time.Since(start))
	}
	return &Result{Cold: percentiles(took)}
}

// BenchmarkAfterRest measures round trips of 8 bytes, each after 2 ms without activity, in rounds: of this
// library with and without busy polling, of the C++ library, and of two Go processes that send 8 bytes through
// an eventfd, or over TCP. The ratios are the medians of those within a round.
func BenchmarkAfterRest(b *testing.B) {
	needSharedMemory(b)
	requirePeer(b)
	results := map[string][]*Result{}
	eventIn, eventOut := startEventfdEcho(b)
	tcp := startTCPEcho(b)
	for b.Loop() {
		for range versusPairs {
			results["bare-shm"] = append(results["bare-shm"], bareAfterRest(b, eventIn, eventOut))
			results["bare-uv"] = append(results["bare-uv"], bareAfterRest(b, tcp, tcp))
			for _, transport := range []string{shm.Name, tcpTransport} {
				s := Spec{
					Transports: []string{transport}, Channels: []string{"basic"}, Dialect: pipe.DialectNative,
					Size: 8, Named: true, RoundTrips: restTrips, ColdTrips: restTrips,
				}
				busy := s
				busy.BusyPolling = true
				for name, measure := range map[string]func() (*Result, error){
					"default-" + transport: func() (*Result, error) { return Go{Child: child(b)}.Measure(b.Context(), s) },
					"busy-" + transport:    func() (*Result, error) { return Go{Child: child(b)}.Measure(b.Context(), busy) },
					"cxx-" + transport:     func() (*Result, error) { return Libtensorpipe{}.Measure(b.Context(), s) },
				} {
					r, err := measure()
					require.NoError(b, err)
					results[name] = append(results[name], r)
				}
			}
		}
	}
	b.ReportMetric(0, "ns/op")
	for name, all := range results {
		b.ReportMetric(Median(all, ColdRTT), name+"-us")
		kind, transport, _ := strings.Cut(name, "-")
		if kind == "default" {
			b.ReportMetric(Ratio(all, results["bare-"+transport], ColdRTT), fmt.Sprint(name, "-of-bare"))
		}
		if kind == "busy" {
			b.ReportMetric(Ratio(all, results["cxx-"+shm.Name], ColdRTT), fmt.Sprint(name, "-of-cxx-shm"))
		}
		if kind != "bare" {
			b.ReportMetric(Median(all, tripAt99), name+"-warm-p99-us")
		}
	}
}

// tripAt99 returns the time of which 99 % of the warm round trips take no more, in microseconds.
func tripAt99(r *Result) float64 { return r.RTT.P99 }
