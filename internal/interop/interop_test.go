package interop

import (
	"io"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
)

func TestMain(m *testing.M) {
	short.SkipPackage("compiles and starts C++ peers")
	leakcheck.Main(m)
}

// totals is the last line that a sender prints.
type totals struct{ Messages, Payloads, Tensors, Bytes int }

// Two tppeer processes exchange messages correctly, with different shapes, transports and channels.
// The other tests rely on that.
func TestPeersAgree(t *testing.T) {
	for name, flags := range map[string]string{
		"random":              "--count 50 --seed 1",
		"all targets":         "--count 30 --seed 2 --targets all",
		"no targets":          "--count 30 --seed 3 --targets none",
		"all at once":         "--count 50 --seed 4 --both",
		"all at once, chosen": "--count 50 --seed 5 --both --targets none",
		"empty parts":         "--count 5 --size 0 --payloads 2 --tensors 2",
		"metadata only":       "--count 5 --payloads 0 --tensors 0",
		"64 MiB tensor":       "--count 2 --size 67108864 --payloads 0 --tensors 1",
		"64 MiB payload":      "--count 2 --size 67108864 --payloads 1 --tensors 0",
		"sizes in turn":       "--count 4 --size 0,13,1048576",
		"lanes":               "--count 20 --seed 6 --channel mpt_uv --lanes 3",
		"direct":              "--count 20 --seed 7 --channel basic,cma",
		"shared":              "--count 20 --seed 8 --transport uv,shm",
		"shared and direct":   "--count 20 --seed 9 --transport uv,shm --channel cma --both",
	} {
		t.Run(name, func(t *testing.T) {
			args := strings.Fields(flags)
			listen := "uv://127.0.0.1:0"
			if strings.Contains(flags, "shm") {
				listen += ",shm://"
			}
			echo := Start(t, append([]string{"echo", "--listen", listen}, args...)...)
			check := Start(t, append([]string{"check", "--to", strings.Fields(echo.URL())[0]}, args...)...)
			require.NoError(t, check.Wait())
			var sums totals
			check.Next(&sums)
			require.Equal(t, args[1], strconv.Itoa(sums.Messages))
			require.NoError(t, echo.Stop())
		})
	}
}

func TestEchoServesManyPipes(t *testing.T) {
	echo := Start(t, "echo", "--listen", "uv://127.0.0.1:0")
	var checks []*Peer
	for seed := range 3 {
		checks = append(checks, Start(t, "check", "--to", echo.URL(), "--count", "20", "--seed", strconv.Itoa(seed)))
	}
	for _, c := range checks {
		require.NoError(t, c.Wait())
	}
	require.NoError(t, echo.Stop())
}

// A tppeer that checks echoes can be the listening end, and the one that echoes the dialling end.
func TestCheckListens(t *testing.T) {
	check := Start(t, "check", "--listen", "uv://127.0.0.1:0", "--count", "10")
	echo := Start(t, "echo", "--to", check.URL())
	require.NoError(t, check.Wait())
	require.NoError(t, echo.Wait())
}

// Generate returns the messages that tppeer generates with the same flags, and Report the
// description that tppeer prints when it receives them.
func TestGenerateMatchesPeer(t *testing.T) {
	one, three := 1, 3
	for name, c := range map[string]struct {
		flags string
		shape Shape
	}{
		"random":        {"--seed 7", Shape{Seed: 7}},
		"big seed":      {"--seed 18446744073709551615", Shape{Seed: 1<<64 - 1}},
		"all targets":   {"--targets all", Shape{Seed: 1, Targets: TargetsAll}},
		"no targets":    {"--targets none", Shape{Seed: 1, Targets: TargetsNone}},
		"fixed":         {"--size 100 --payloads 1 --tensors 3", Shape{Seed: 1, Sizes: []int{100}, Payloads: &one, Tensors: &three}},
		"sizes in turn": {"--size 0,13,4096", Shape{Seed: 1, Sizes: []int{0, 13, 4096}}},
		"fixed tensors": {"--tensors 3 --both", Shape{Seed: 1, Tensors: &three}},
	} {
		t.Run(name, func(t *testing.T) {
			count := race.Pick(20, 5)
			sink := Start(t, "sink", "--listen", "uv://127.0.0.1:0", "--count", strconv.Itoa(count))
			source := Start(t, append([]string{"source", "--to", sink.URL(), "--count", strconv.Itoa(count)}, strings.Fields(c.flags)...)...)
			for i := range count {
				var got Report
				sink.Next(&got)
				require.Equal(t, Generate(c.shape, i).Report(), got, "message %d", i)
			}
			require.NoError(t, source.Wait())
			require.NoError(t, sink.Stop())
		})
	}
}

// A tppeer that checks echoes fails, and names the difference, if it gets other messages than it
// has sent.
func TestCheckFindsDifference(t *testing.T) {
	for difference, flags := range map[string]string{
		"metadata of message": "--seed 2",
		"length of tensor 0":  "--tensors 1 --payloads 0 --size 5",
		"target of tensor 0":  "--tensors 1 --payloads 0 --size 4 --targets none",
		"number of payload":   "--tensors 1 --payloads 1 --size 4",
	} {
		t.Run(difference, func(t *testing.T) {
			source := Start(t, append([]string{"source", "--listen", "uv://127.0.0.1:0"}, strings.Fields(flags)...)...)
			check := Start(t, "check", "--to", source.URL(), "--tensors", "1", "--payloads", "0", "--size", "4", "--targets", "all")
			require.ErrorContains(t, check.Wait(), "message 0 came back different: "+difference)
		})
	}
}

func TestStallNeverReads(t *testing.T) {
	stall := Start(t, "stall", "--listen", "uv://127.0.0.1:0")
	source := Start(t, "source", "--to", stall.URL(), "--size", "67108864", "--payloads", "0", "--tensors", "1", "--targets", "all")
	var seen struct{ Payloads, Tensors int }
	stall.Next(&seen)
	require.Equal(t, 1, seen.Tensors)
	stall.Kill()
	require.ErrorContains(t, source.Wait(), "exit status 1")
}

func TestExitStatus(t *testing.T) {
	start := func(t *testing.T) *Peer { return Start(t, "echo", "--listen", "uv://127.0.0.1:0") }
	t.Run("stdin", func(t *testing.T) { require.NoError(t, start(t).Stop()) })
	t.Run("SIGTERM", func(t *testing.T) {
		p := start(t)
		p.Signal(syscall.SIGTERM)
		require.NoError(t, p.Wait())
	})
	t.Run("kill", func(t *testing.T) {
		p := start(t)
		p.Kill()
		p.Kill()
		require.ErrorContains(t, p.Wait(), "signal: killed")
	})
	t.Run("sender stopped early", func(t *testing.T) {
		p := Start(t, "check", "--listen", "uv://127.0.0.1:0")
		require.ErrorContains(t, p.Stop(), "exit status 3")
	})
	t.Run("no listener", func(t *testing.T) {
		require.ErrorContains(t, Start(t, "check", "--to", "uv://127.0.0.1:1").Wait(), "ECONNREFUSED")
	})
}

func TestUsageErrors(t *testing.T) {
	for flags, want := range map[string]string{
		"dance --to uv://127.0.0.1:1":                 "unknown role dance",
		"echo":                                        "need one of --listen and --to",
		"check --to uv://127.0.0.1:1 --count 0":       "--count must be at least 1",
		"check --to uv://127.0.0.1:1 --size 12kB":     "not a number: 12kB",
		"check --to uv://127.0.0.1:1 --targets x":     "not one of mixed, all, none: x",
		"check --to uv://127.0.0.1:1 --size 1,x":      "not a number: x",
		"check --to uv://127.0.0.1:1 --lanes 0":       "--lanes must be at least 1",
		"check --to uv://127.0.0.1:1 --transport udp": "unknown transport udp",
		"check --to uv://127.0.0.1:1 --seed":          "no value for it: --seed",
		"check --to uv://127.0.0.1:1 --channel ib":    "unknown channel ib",
	} {
		err := Start(t, strings.Fields(flags)...).Wait()
		require.ErrorContains(t, err, "exit status 2", flags)
		require.ErrorContains(t, err, want, flags)
	}
}

// Messages that differ in metadata, a payload, a tensor, its target or the number of parts have
// different reports.
func TestReportDistinguishesMessages(t *testing.T) {
	make := func() Message {
		m := Generate(Shape{Seed: 3, Payloads: ptr(1), Tensors: ptr(1), Sizes: []int{9}}, 0)
		m.Tensors[0].Metadata = []byte("m")
		return m
	}
	good := make().Report()
	for name, damage := range map[string]func(*Message){
		"metadata":        func(m *Message) { m.Metadata = append(m.Metadata, 0) },
		"payload":         func(m *Message) { m.Payloads[0].Data[8] ^= 1 },
		"tensor":          func(m *Message) { m.Tensors[0].Data[0] ^= 0x80 },
		"tensor metadata": func(m *Message) { m.Tensors[0].Metadata[0] = 'n' },
		"target":          func(m *Message) { m.Tensors[0].Targeted = !m.Tensors[0].Targeted },
		"missing":         func(m *Message) { m.Tensors = nil },
	} {
		bad := make()
		damage(&bad)
		require.NotEqual(t, good, bad.Report(), name)
	}
}

func ptr(n int) *int { return &n }

func TestDigest(t *testing.T) {
	require.Equal(t, Digest{0, "cbf29ce484222325"}, DigestOf(nil))
	require.Equal(t, Digest{6, "85944171f73967e8"}, DigestOf([]byte("foobar")))
}

func TestLines(t *testing.T) {
	l := newLines()
	for _, text := range []string{"one\ntw", "o\n\nrest"} {
		_, err := io.WriteString(l, text)
		require.NoError(t, err)
	}
	l.close()
	var got []string
	for {
		line, err := l.next(maxWait)
		if err != nil {
			require.ErrorIs(t, err, io.EOF)
			break
		}
		got = append(got, line)
	}
	require.True(t, slices.Equal([]string{"one", "two", ""}, got), got)
	require.Equal(t, "rest", l.remaining())
}

func TestLinesTimeout(t *testing.T) {
	_, err := newLines().next(0)
	require.ErrorIs(t, err, errNoLine)
}
