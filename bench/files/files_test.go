package files

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
)

// asEnd is the environment variable that makes this test program run Send or Receive.
const asEnd = "TENSORPIPE_BENCH_FILES"

func TestMain(m *testing.M) {
	short.SkipPackage("measures between processes")
	var err error
	switch os.Getenv(asEnd) {
	case "":
		leakcheck.Main(m)
	case "send":
		err = Send(os.Args[1], os.Args[2])
	case "receive":
		err = Receive(os.Args[1], os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// subject is one way to copy the files of the directory src into the empty directory dst, of the
// same file system. copyFiles returns when they are on disk.
type subject struct {
	name      string
	copyFiles func(b testing.TB, src, dst string) time.Duration
}

// subjects returns all subjects, cp first. program is the path of tpipe.
func subjects(program string) []subject {
	over := func(flags ...string) func(testing.TB, string, string) time.Duration {
		return func(b testing.TB, src, dst string) time.Duration {
			receive := exec.Command(program, append([]string{"recv", "-once", "-quiet", "-out", dst}, flags...)...)
			address, wait := listening(b, receive)
			begin := time.Now()
			run(b, program, append([]string{"send", "-quiet", "-to", strings.TrimPrefix(address, "listening on "), src + "/."}, flags...)...)
			wait()
			return time.Since(begin)
		}
	}
	return []subject{
		{"cp", func(b testing.TB, src, dst string) time.Duration {
			begin := time.Now()
			run(b, "cp", "-r", "--reflink=never", src+"/.", dst)
			run(b, "sync")
			return time.Since(begin)
		}},
		{"tpipe", over("-transport", "uv", "-channel", "basic")},
		{"tpipe-default", over()},
		{"plain", func(b testing.TB, src, dst string) time.Duration {
			address, wait := listening(b, end(b, "receive", dst))
			begin := time.Now()
			runCommand(b, end(b, "send", address, src))
			wait()
			return time.Since(begin)
		}},
	}
}

// end returns the command of a process that runs this test program as the given end.
func end(b testing.TB, what string, args ...string) *exec.Cmd {
	b.Helper()
	path, err := os.Executable()
	require.NoError(b, err)
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), asEnd+"="+what, "GORACE=atexit_sleep_ms=0")
	return cmd
}

// listening starts cmd and returns the first line that it prints. wait blocks until cmd has exited.
// cmd is killed when b ends.
func listening(b testing.TB, cmd *exec.Cmd) (line string, wait func()) {
	b.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	b.Cleanup(func() { _ = cmd.Process.Kill() })
	line, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(b, err)
	return strings.TrimSuffix(line, "\n"), func() { require.NoError(b, cmd.Wait(), stderr.String()) }
}

func run(b testing.TB, name string, args ...string) {
	b.Helper()
	runCommand(b, exec.Command(name, args...))
}

// runCommand runs cmd, which must succeed. Its output is printed only if it fails.
func runCommand(b testing.TB, cmd *exec.Cmd) {
	b.Helper()
	out, err := cmd.CombinedOutput()
	require.NoError(b, err, "%s", out)
}

// tpipe builds the command and returns its path.
func tpipe(b testing.TB) string {
	b.Helper()
	path := filepath.Join(b.TempDir(), "tpipe")
	run(b, "go", "build", "-buildvcs=false", "-o", path, "github.com/tensorpipe-go/tensorpipe/cmd/tpipe")
	return path
}

// files returns a new directory with the given number of safetensors files of size bytes each, with
// random bytes. They are in the page cache. size is a multiple of 1 KiB.
func files(b testing.TB, number, size int) string {
	b.Helper()
	dir := b.TempDir()
	random := rand.NewChaCha8([32]byte{})
	text := fmt.Sprintf(`{"t":{"dtype":"U8","shape":[%d],"data_offsets":[0,%[1]d]}}`, size-128)
	header := append(binary.LittleEndian.AppendUint64(nil, 128-8), text+strings.Repeat(" ", 128-8-len(text))...)
	for i := range number {
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("%05d.safetensors", i)))
		require.NoError(b, err)
		_, err = io.CopyN(f, io.MultiReader(bytes.NewReader(header), random), int64(size))
		require.NoError(b, err)
		require.NoError(b, f.Close())
	}
	return dir
}

// TestCopies checks that every subject copies every byte.
func TestCopies(t *testing.T) {
	src := files(t, 3, 100<<10)
	for _, s := range subjects(tpipe(t)) {
		t.Run(s.name, func(t *testing.T) {
			dst := t.TempDir()
			require.Positive(t, s.copyFiles(t, src, dst))
			run(t, "diff", "-r", src, dst)
		})
	}
}

// BenchmarkFiles copies a gigabyte of files, which are in the page cache, by each subject in turn;
// one operation is several rounds. A ratio is the median over the rounds of the time of cp divided
// by that of the subject: the speed relative to cp. The disk is idle before a time is measured, and
// large copies are removed. Those of many files are kept until the end: for minutes ext4 does not
// use the inodes of removed files again, and creating files is slow while it searches for others.
// The directory for temporary files selects the file system.
func BenchmarkFiles(b *testing.B) {
	all := subjects(tpipe(b))
	for _, set := range []struct {
		name                 string
		number, size, rounds int
		keep                 bool
	}{{"1x1GiB", 1, 1 << 30, 5, false}, {"64x16MiB", 64, 16 << 20, 5, false}, {"10000x100KiB", 10_000, 100 << 10, 3, true}} {
		b.Run(set.name, func(b *testing.B) {
			src := files(b, set.number, set.size)
			seconds := map[string][]float64{}
			for b.Loop() {
				for range set.rounds {
					for _, s := range all {
						seconds[s.name] = append(seconds[s.name], measure(b, s, src, set.keep))
					}
				}
			}
			b.ReportMetric(0, "ns/op")
			for _, s := range all {
				b.ReportMetric(median(seconds[s.name]), s.name+"-s")
				if s.name == "cp" {
					continue
				}
				var ratios []float64
				for i, cp := range seconds["cp"] {
					ratios = append(ratios, cp/seconds[s.name][i])
				}
				b.ReportMetric(median(ratios), s.name+"/cp")
				b.ReportMetric(slices.Min(ratios), s.name+"/cp-min")
			}
		})
	}
}

// measure copies the files of src by s and returns the seconds of copying. It removes the copies
// unless keep is true; they are then removed at the end of b. Directly before, it writes 1.5 GiB and
// removes them: a virtual machine may have returned free memory to its host, and the program that
// uses the memory next would wait for the host.
func measure(b *testing.B, s subject, src string, keep bool) float64 {
	dst := b.TempDir()
	used := filepath.Join(dst, "used")
	run(b, "dd", "if=/dev/zero", "of="+used, "bs=128K", "count=12K")
	require.NoError(b, os.Remove(used))
	run(b, "sync")
	took := s.copyFiles(b, src, dst)
	if !keep {
		require.NoError(b, os.RemoveAll(dst))
	}
	return took.Seconds()
}

func median(all []float64) float64 { return slices.Sorted(slices.Values(all))[len(all)/2] }
