package wait_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
)

// roleVar is the environment variable with the role of a child process: the benchmarks run between
// processes.
const roleVar = "WAIT_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVar); role != "" {
		if err := play(strings.Fields(role)); err != nil {
			fmt.Fprintln(os.Stderr, role, err)
			os.Exit(1)
		}
		return
	}
	leakcheck.Main(m)
}

// play runs the role "echo SPIN", which prints its address, or "ask SPIN ADDRESS COUNT", which
// prints the mean nanoseconds of a round trip.
func play(role []string) error {
	spin, err := time.ParseDuration(role[1])
	if err != nil {
		return err
	}
	if role[0] == "echo" {
		return serveEcho(spin)
	}
	count, err := strconv.Atoi(role[3])
	if err != nil {
		return err
	}
	a, err := newAsker(role[2], spin)
	if err != nil {
		return err
	}
	defer a.Close()
	begin := time.Now()
	for range count {
		if err := a.ask(); err != nil {
			return err
		}
	}
	fmt.Println(time.Since(begin).Nanoseconds() / int64(count))
	return nil
}

func serveEcho(spin time.Duration) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	c, err := l.Accept()
	if err != nil {
		return err
	}
	r, err := reader(c, spin)
	if err != nil {
		return err
	}
	for p := make([]byte, questionSize); ; {
		if _, err := io.ReadFull(r, p); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if _, err := c.Write(p); err != nil {
			return err
		}
	}
}

const questionSize = 64

// plain selects the socket's own Read.
const plain = -1

func reader(c net.Conn, spin time.Duration) (io.Reader, error) {
	if spin == plain {
		return c, nil
	}
	return wait.NewReader(c.(*net.TCPConn), wait.Config{Spin: spin})
}

// asker is the other end of an echo.
type asker struct {
	net.Conn
	r io.Reader
	p [questionSize]byte
}

func newAsker(addr string, spin time.Duration) (*asker, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	r, err := reader(c, spin)
	return &asker{Conn: c, r: r}, err
}

func (a *asker) ask() error {
	if _, err := a.Write(a.p[:]); err != nil {
		return err
	}
	_, err := io.ReadFull(a.r, a.p[:])
	return err
}

// start starts a child process with that role (see play) and returns its output. The benchmark
// waits for its end.
func start(b *testing.B, role ...any) *bufio.Reader {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVar+"="+strings.TrimSpace(fmt.Sprintln(role...)))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	b.Cleanup(func() { require.NoError(b, cmd.Wait()) })
	return bufio.NewReader(out)
}

func line(b *testing.B, r *bufio.Reader) string {
	b.Helper()
	text, err := r.ReadString('\n')
	require.NoError(b, err)
	return strings.TrimSpace(text)
}

var modes = []struct {
	name string
	spin time.Duration
}{{"plain", plain}, {"off", 0}, {"spin", wait.Spin}}

// BenchmarkRoundTrip measures a round trip with another process.
func BenchmarkRoundTrip(b *testing.B) {
	for _, m := range modes {
		b.Run(m.name, func(b *testing.B) {
			a, err := newAsker(line(b, start(b, "echo", m.spin)), m.spin)
			require.NoError(b, err)
			b.Cleanup(func() { a.Close() })
			b.ReportAllocs()
			for b.Loop() {
				if err := a.ask(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkFourPairs measures round trips of four pairs of processes at once, and reports those of
// the slowest pair.
func BenchmarkFourPairs(b *testing.B) {
	const questions = 10_000
	for _, m := range modes {
		b.Run(m.name, func(b *testing.B) {
			var slowest time.Duration
			for b.Loop() {
				var answers []*bufio.Reader
				for range 4 {
					addr := line(b, start(b, "echo", m.spin))
					answers = append(answers, start(b, "ask", m.spin, addr, questions))
				}
				var took []time.Duration
				for _, answer := range answers {
					d, err := time.ParseDuration(line(b, answer) + "ns")
					require.NoError(b, err)
					took = append(took, d)
				}
				slowest += slices.Max(took)
			}
			b.ReportMetric(float64(slowest.Nanoseconds())/float64(b.N), "ns/question")
		})
	}
}
