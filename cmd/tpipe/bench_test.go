package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tensorpipe-go/tensorpipe/bench"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/shm"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

func TestBenchJSON(t *testing.T) {
	stdout, stderr, code := tpipe(t, strings.Fields("bench -json -transport uv -channel basic -named -size 0,8,64KiB -depth 3 -count 12")...)
	require.Zero(t, code, stderr)
	require.Empty(t, stderr)
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	require.Len(t, lines, 7, "two yardsticks of the largest, and the ratios to them")
	for i, size := range []int{0, 8, 64 << 10} {
		var fields map[string]json.RawMessage
		require.NoError(t, json.Unmarshal([]byte(lines[i]), &fields))
		for _, name := range []string{"transport", "channel", "dialect", "size_bytes", "depth", "messages", "rtt_us", "gbytes_per_second", "cpu_seconds", "rtt_route", "one_way_route", "buffers", "path"} {
			require.Contains(t, fields, name)
		}
		var r bench.Result
		require.NoError(t, json.Unmarshal([]byte(lines[i]), &r))
		require.Equal(t, []string{"tensorpipe-go", "uv", "basic", "native"}, []string{r.Subject, r.Transport, r.Channel, string(r.Dialect)})
		way := map[int]string{0: "", 8: bench.Inline, 64 << 10: bench.Inline}[size]
		require.Equal(t, []string{way, way}, []string{r.TripRoute, r.OneWayRoute})
		require.Equal(t, bench.BuffersDefault, r.Buffers)
		require.Equal(t, []int{size, 3, 12, 12, 2}, []int{r.SizeBytes, r.Depth, r.Messages, r.RoundTrips, r.Processes})
		require.True(t, r.Named)
		for _, p := range []*bench.Percentiles{r.RTT, r.Cold} {
			require.Positive(t, p.P50)
			require.LessOrEqual(t, p.P50, p.P90)
			require.LessOrEqual(t, p.P90, p.P99)
		}
		require.Equal(t, size > 0, r.GBps > 0)
		require.Equal(t, bench.CongestionControl(), r.Congestion)
		require.Equal(t, r.Dialect, r.Path.Dialect)
	}
}

func TestBenchTable(t *testing.T) {
	stdout, stderr, code := tpipe(t, strings.Fields("bench -transport uv -channel basic -size 8,1MiB -count 3 -dialect compatible -spin=false -busy-polling -eager=false")...)
	require.Zero(t, code, stderr)
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	require.Len(t, lines, 4)
	require.Regexp(t, "^transport uv, channel basic, compatible dialect, 8 in flight, default buffers, no spinning, busy polling, no eager transfers(, congestion control [a-z]+)?$", lines[0])
	require.Equal(t, strings.Fields("size p50 p90 p99 cold p50 CPU one way CPU of memcpy CPU of TCP via"), strings.Fields(lines[1]))
	require.Contains(t, lines[2], "8 B")
	require.Contains(t, lines[2], "k/s", "small messages are counted")
	require.Regexp(t, " - +- +- +basic$", lines[2], "and held against nothing")
	require.Contains(t, lines[3], "1 MiB")
	require.Contains(t, lines[3], "GB/s")
	const share = ` +\d+\.\d\d \([\d.]+\)`
	require.Regexp(t, share+` +(-|[\d.e+]+)`+share+" +basic$", lines[3])
	require.NotContains(t, stdout, "ratio", "there is nothing to compare with")
}

// TestBenchCompress checks the table of a bench with -compress: the heading names the data and the
// codec, and the column "wire" shows the fraction of the bytes that is sent.
func TestBenchCompress(t *testing.T) {
	for codec, shares := range map[string]map[string]string{
		"s2":   {"zeros": " 0.0", "weights": " 100 %", "random": " 100 %"}, // s2 does not compress floats
		"zstd": {"zeros": " 0.0", "weights": " 9", "random": " 100 %"},
	} {
		args := fmt.Sprintf("bench -size 100KiB,1MiB -count %d -compress %s -data ", race.Pick(3, 1), codec)
		for data, want := range shares {
			stdout, stderr, code := tpipe(t, strings.Fields(args+data)...)
			require.Zero(t, code, stderr)
			lines := strings.Split(strings.TrimSpace(stdout), "\n")
			require.Len(t, lines, 4)
			require.Contains(t, lines[0], "tensors of "+data+", compressed by "+codec)
			require.Regexp(t, "wire$", lines[1])
			require.Contains(t, lines[3], want)
			require.Regexp(t, "%$", lines[3])
		}
	}
}

func TestBenchCompressJSON(t *testing.T) {
	for args, want := range map[string]float64{"zstd -data weights": 0.93, "s2 -data weights": 1, "s2 -data zeros": 0} {
		stdout, stderr, code := tpipe(t, strings.Fields(fmt.Sprintf("bench -json -size 100KiB,1MiB -count %d -compress %s", race.Pick(3, 1), args))...)
		require.Zero(t, code, stderr)
		ours := 0
		for line := range strings.Lines(stdout) {
			var r bench.Result
			require.NoError(t, json.Unmarshal([]byte(line), &r))
			if r.Subject != (bench.Go{}).Name() {
				continue // a yardstick, without compression
			}
			ours++
			require.Equal(t, args, r.Compression.String()+" -data "+r.Data)
			require.InDelta(t, want, r.WireShare, 0.03)
		}
		require.Equal(t, 2, ours)
	}
}

// TestBenchCombinations checks that a bench prints a table for each combination of -transport and
// -channel.
func TestBenchCombinations(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("channel xth is for Linux")
	}
	stdout, stderr, code := tpipe(t, strings.Fields("bench -transport uv -channel basic,xth -size 100KiB -count 3")...)
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "channel basic, native dialect, 8 in flight, default buffers, congestion")
	require.Contains(t, stdout, "channel xth, native dialect, 8 in flight, default buffers, both ends in one process, congestion")
}

// TestBenchSharedMemory checks that a bench over shared memory sends small tensors inline and large
// ones through the named channel.
func TestBenchSharedMemory(t *testing.T) {
	for _, err := range []error{shm.New().Viable(), cma.New(cma.Options{}).Viable()} {
		if err != nil {
			t.Skip("this machine does not allow it: ", err)
		}
	}
	stdout, stderr, code := tpipe(t, strings.Fields("bench -json -transport shm -channel cma,basic -size 8,4MiB -depth 2 -count 3")...)
	require.Zero(t, code, stderr)
	routes := map[string][]string{}
	for line := range strings.Lines(stdout) {
		var r bench.Result
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		if r.Subject != (bench.Go{}).Name() {
			continue // a yardstick
		}
		require.Equal(t, shm.Name, r.Transport)
		require.NotNil(t, r.RTT, stdout)
		require.Positive(t, r.RTT.P50)
		require.Positive(t, r.GBps)
		routes[r.Channel] = append(routes[r.Channel], r.TripRoute, r.OneWayRoute)
	}
	require.Equal(t, map[string][]string{
		cma.Name:   {bench.Inline, bench.Inline, cma.Name, cma.Name},
		basic.Name: {bench.Inline, bench.Inline, basic.Name, basic.Name},
	}, routes)
}

// TestBenchNamedBoth checks that -named=both measures each size with and without a named target,
// and messages without a tensor once.
func TestBenchNamedBoth(t *testing.T) {
	stdout, stderr, code := tpipe(t, strings.Fields("bench -json -named=both -size 0,8 -count 3")...)
	require.Zero(t, code, stderr)
	var got []string
	for line := range strings.Lines(stdout) {
		var r bench.Result
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		got = append(got, fmt.Sprint(r.SizeBytes, r.Named))
	}
	require.Equal(t, []string{"0 true", "8 true", "8 false"}, got)
}

func TestBenchPeer(t *testing.T) {
	if err := (bench.Libtensorpipe{}).Build(); errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	args := "bench -peer libtensorpipe -pairs 2 -transport uv -channel basic -buffers huge -count 5 -size 0,1001"
	stdout, stderr, code := tpipe(t, strings.Fields(args)...)
	require.Zero(t, code, stderr)
	require.Equal(t, 2, strings.Count(stdout, "libtensorpipe"))
	require.Equal(t, 2, strings.Count(stdout, "ratio"))
	require.Contains(t, stdout, "medians of 2 pairs\n")
	require.Contains(t, stdout, "huge buffers")

	stdout, stderr, code = tpipe(t, strings.Fields(args+" -json")...)
	require.Zero(t, code, stderr)
	var subjects []string
	var last benchRatios
	for line := range strings.Lines(stdout) {
		last = benchRatios{}
		require.NoError(t, json.Unmarshal([]byte(line), &last))
		subjects = append(subjects, last.Subject)
	}
	const here, there = "tensorpipe-go", "libtensorpipe"
	one := []string{here, there, here, there, here + "/" + there}
	require.Equal(t, append(one, one...), subjects)
	require.Equal(t, 1001, last.SizeBytes)
	require.Equal(t, 2, last.Pairs)
	for _, ratio := range []*float64{last.RTT, last.Cold, last.CPUPerTrip, last.Rate} {
		require.Positive(t, *ratio)
	}
}

// TestBenchPeerLacksThePath checks that a path that the peer does not have is printed without a
// ratio, and with the reason why the peer was not measured.
func TestBenchPeerLacksThePath(t *testing.T) {
	if err := (bench.Libtensorpipe{}).Build(); errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	args := "bench -peer libtensorpipe -pairs 2 -transport uv -channel basic,auto -count 3 -size 8"
	stdout, stderr, code := tpipe(t, strings.Fields(args)...)
	require.Zero(t, code, stderr)
	require.Equal(t, 1, strings.Count(stdout, "ratio"))
	require.Contains(t, stdout, "without libtensorpipe: libtensorpipe needs exactly one transport and one channel\n")
	require.Contains(t, stdout, "uv/auto: transport uv, channel ")

	stdout, stderr, code = tpipe(t, strings.Fields(args+" -json")...)
	require.Zero(t, code, stderr)
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	require.JSONEq(t, `{"subject":"libtensorpipe","transport":"uv","channel":"auto","size_bytes":8,
		"not_measured":"libtensorpipe needs exactly one transport and one channel"}`, lines[len(lines)-1])
	require.Equal(t, 1, strings.Count(stdout, `"tensorpipe-go/libtensorpipe"`))
}

// TestBenchPeerTakesAnotherPath checks that the table and the JSON name the path of the peer if
// -peer-channel differs from -channel.
func TestBenchPeerTakesAnotherPath(t *testing.T) {
	if err := (bench.Libtensorpipe{}).Build(); errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	args := "bench -peer libtensorpipe -pairs 1 -transport uv -channel basic -peer-channel mpt_uv -lanes 2 -count 3 -size 100KiB -eager=false"
	stdout, stderr, code := tpipe(t, strings.Fields(args)...)
	require.Zero(t, code, stderr)
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	require.Len(t, lines, 5)
	require.Contains(t, lines[0], "transport uv, channel basic, native")
	require.Contains(t, lines[0], ", medians of 1 pair, libtensorpipe on transport uv, channel mpt_uv with up to 2 lanes")
	require.Regexp(t, " mpt_uv$", lines[3])
	require.Regexp(t, " basic$", lines[2])

	stdout, stderr, code = tpipe(t, strings.Fields(args+" -json")...)
	require.Zero(t, code, stderr)
	found := map[string]benchRatios{}
	for line := range strings.Lines(stdout) {
		var r benchRatios
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		found[r.Subject] = r
	}
	require.Equal(t, "uv mpt_uv", found["libtensorpipe"].Transport+" "+found["libtensorpipe"].Channel)
	both := found["tensorpipe-go/libtensorpipe"]
	require.Equal(t, "uv mpt_uv", both.PeerTransport+" "+both.PeerChannel)
	require.Equal(t, "uv basic", both.Transport+" "+both.Channel)
}

// TestBenchPeerBesideAuto checks that this library may use its default path in a bench with a peer
// whose path -peer-transport and -peer-channel name.
func TestBenchPeerBesideAuto(t *testing.T) {
	if err := (bench.Libtensorpipe{}).Build(); errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	args := "bench -peer libtensorpipe -pairs 1 -peer-transport uv -peer-channel basic -count 3 -size 8"
	stdout, stderr, code := tpipe(t, strings.Fields(args)...)
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "auto/auto: transport ")
	require.Equal(t, 1, strings.Count(stdout, "ratio"))
}

// TestBenchCatalog checks that a bench of all transports and channels measures each combination
// that works on this machine, by the route that belongs to the size, and prints a reason for every
// other combination.
func TestBenchCatalog(t *testing.T) {
	all := catalog(torchLanes)
	sizes := []int{8, 100 << 10}
	stdout, stderr, code := tpipe(t, "bench", "-json", "-count", "3", "-size", "8,100KiB", "-lanes", "2", "-eager=false",
		"-transport", strings.Join(transportNames(all), ","), "-channel", strings.Join(channelNames(all), ","))
	require.Zero(t, code, stderr)
	want := map[string]string{}
	for _, tr := range all.Transports {
		for _, ch := range all.Channels {
			path := tr.Name + "/" + ch.Name
			if cmp.Or(tr.Transport.Viable(), ch.Factory.Viable()) != nil {
				want[path] = "not measured"
				continue
			}
			for _, size := range sizes {
				want[fmt.Sprint(path, " ", size)] = wantRoute(tr.Name, ch.Name, size)
			}
		}
	}
	got := map[string]string{}
	for line := range strings.Lines(stdout) {
		var absent benchAbsent
		require.NoError(t, json.Unmarshal([]byte(line), &absent))
		if absent.Why != "" {
			got[absent.Transport+"/"+absent.Channel] = "not measured"
			continue
		}
		var r bench.Result
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		if r.Subject != (bench.Go{}).Name() {
			continue // a yardstick
		}
		require.Positive(t, r.RTT.P50)
		require.Positive(t, r.GBps)
		require.Equal(t, r.TripRoute, r.OneWayRoute, line)
		got[fmt.Sprint(r.Transport, "/", r.Channel, " ", r.SizeBytes)] = r.TripRoute
	}
	require.Equal(t, want, got)
}

// wantRoute returns the route that a tensor of size bytes must take in the native dialect on that
// transport and channel: inline, the bulk connection, or the channel.
func wantRoute(transport, channel string, size int) string {
	inline := map[string]int{uvName: 64 << 10, shm.Name: 2 << 20}[transport]
	switch {
	case size <= inline:
		return bench.Inline
	case channel == mpt.UVName: // the tensor is too small for lanes
		return bench.Bulk
	}
	return channel
}

// TestBenchLanes checks that a tensor of 1 MiB is sent through the channel mpt_uv, with the number
// of lanes in -lanes.
func TestBenchLanes(t *testing.T) {
	stdout, stderr, code := tpipe(t, strings.Fields("bench -json -transport uv -channel mpt_uv -lanes 3 -size 1MiB -depth 2 -count 3")...)
	require.Zero(t, code, stderr)
	first, _, _ := strings.Cut(stdout, "\n")
	var r bench.Result
	require.NoError(t, json.Unmarshal([]byte(first), &r))
	require.Equal(t, []string{mpt.UVName, mpt.UVName}, []string{r.TripRoute, r.OneWayRoute}, stdout)
	require.Equal(t, 3, r.Connections, stdout)
	require.Positive(t, r.RTT.P50)
	require.Positive(t, r.GBps)
}

// TestBenchCatalogTakesOptions checks that benchCatalog passes the options of a measurement to the
// transports over TCP and shared memory.
func TestBenchCatalogTakesOptions(t *testing.T) {
	p := benchCatalog(bench.Tuning{Lanes: 3, TCP: []uv.Option{uv.WithSpin(0)}, Shm: []shm.Option{shm.WithSpin(0)}})
	require.Equal(t, transportNames(catalog(3)), transportNames(p))
	for _, e := range p.Transports {
		require.Equal(t, map[string]transport.Transport{uvName: uv.New(uv.WithSpin(0)), shm.Name: shm.New(shm.WithSpin(0))}[e.Name], e.Transport)
	}
}

func TestBenchBadCommandLines(t *testing.T) {
	for line, want := range map[string]string{
		"-size 12kB":                       "want a number of bytes such as 4096, 64KiB",
		"-size 8,,8":                       "want a number of bytes such as 4096, 64KiB",
		"-size 4GiB":                       "tpipe bench: size 4294967296: with a depth of 8 want 0 to 536870912 bytes",
		"-depth 0":                         "-depth 0: want 1 or more",
		"-depth -3":                        "depth -3: want 1 to 1024",
		"-count -3":                        "-3 ",
		"-transport pigeon":                `-transport: there is no transport "pigeon", only auto, uv`,
		"-channel basic,pigeon":            `-channel: there is no channel "pigeon", only `,
		"-lanes 0":                         "-lanes 0: want 1 to 128",
		"-lanes 129":                       "129 lanes: want 1 to 128",
		"-buffers stack":                   `buffers "stack": want default, huge, pool`,
		"-dialect latin":                   `-dialect "latin": want auto, compatible or native`,
		"-compress gzip":                   `compression "gzip" is not known: none, s2 or zstd`,
		"-compress s2 -dialect compatible": "compression s2: the compatible dialect does not support it",
		"-data stars":                      `data "stars": want pattern, zeros, weights, random`,
		"-peer libtensorpipe -transport uv -channel basic -compress s2": "libtensorpipe has no compression",
		"-peer gloo":                         `-peer "gloo": want libtensorpipe`,
		"-peer libtensorpipe":                "name the path to compare with -transport and -channel",
		"-peer libtensorpipe -channel basic": "name the path to compare with -transport and -channel",
		"-peer libtensorpipe -transport uv -channel basic -pairs 0":            "-pairs 0: want 1 to 10000000",
		"-peer libtensorpipe -transport uv -channel xth":                       "-peer libtensorpipe: libtensorpipe needs two processes",
		"-peer libtensorpipe -transport uv -channel basic -peer-channel xth":   `-peer libtensorpipe: libtensorpipe has no channel "xth" here, only basic, mpt_uv, cma`,
		"-peer libtensorpipe -transport uv -channel basic -peer-transport mem": `-peer libtensorpipe: libtensorpipe has no transport "mem" here, only uv, shm`,
		"-peer libtensorpipe -channel basic -peer-channel basic":               "name the path to compare with -transport and -channel",
		"-peer-channel basic": "-peer-transport and -peer-channel are for runs with -peer",
		"-peer-transport shm": "-peer-transport and -peer-channel are for runs with -peer",
		"-pairs 3":            "-pairs is for runs with -peer",
		"-named=maybe":        `invalid boolean value "maybe" for -named: want true, false or both`,
	} {
		stdout, stderr, code := tpipe(t, append([]string{"bench"}, strings.Fields(line)...)...)
		require.Equal(t, exitUsage, code, line)
		require.Empty(t, stdout, line)
		require.Contains(t, stderr, want, line)
		require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	}
}

// childOf waits until the bench p has started its second process, and returns the id of that
// process.
func childOf(t *testing.T, p *process) int {
	t.Helper()
	found := 0
	require.Eventually(t, func() bool {
		found = benchChildOf(p.cmd.Process.Pid)
		return found != 0
	}, processTimeout, pollInterval)
	return found
}

// TestBenchChildIsKilled checks that a bench whose second process is killed exits with exitFailed,
// prints the reason, and prints no figures.
func TestBenchChildIsKilled(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("children are looked for in /proc")
	}
	p := start(t, "bench", "-count", "10000000", "-size", "8")
	child, err := os.FindProcess(childOf(t, p))
	require.NoError(t, err)
	require.NoError(t, child.Kill())
	stdout, stderr, code := p.wait()
	require.Equal(t, exitFailed, code)
	require.Empty(t, stdout)
	require.Equal(t, "tpipe bench: process bench server: signal: killed\n", stderr)
}

// TestBenchChildEnds checks that the second process of a bench exits when the bench is interrupted
// or killed.
func TestBenchChildEnds(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("children are looked for in /proc")
	}
	for name, end := range map[string]os.Signal{"interrupted": os.Interrupt, "killed": os.Kill} {
		t.Run(name, func(t *testing.T) {
			p := start(t, "bench", "-count", "10000000", "-size", "8")
			child := childOf(t, p)
			p.signal(end)
			stdout, stderr, code := p.wait()
			require.Empty(t, stdout)
			if end == os.Interrupt {
				require.Equal(t, exitInterrupted, code)
				require.Equal(t, "tpipe bench: interrupted\n", stderr)
			}
			require.Eventually(t, func() bool { return !isRunning(child) }, processTimeout, pollInterval)
		})
	}
}

// pollInterval is the time between two searches for a process, whose start and exit send no event.
const pollInterval = 5 * time.Millisecond

// benchChildOf returns the id of the second process of the bench with the process id pid, or 0 if
// there is none. It ignores other children, of which a Go program may have short-lived ones.
func benchChildOf(pid int) int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	for _, e := range entries {
		var id int
		if _, err := fmt.Sscan(e.Name(), &id); err != nil {
			continue
		}
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", id))
		if _, parent := processState(id); parent == pid && strings.Contains(string(line), benchChildName) {
			return id
		}
	}
	return 0
}

// isRunning reports whether a process with the id pid exists and is not a zombie.
func isRunning(pid int) bool {
	state, _ := processState(pid)
	return state != "" && state != "Z"
}

// processState returns the state of the process pid, a letter as in /proc, and the id of its
// parent. If the process does not exist it returns "" and 0.
func processState(pid int) (state string, parent int) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0
	}
	_, behindName, _ := strings.Cut(string(text), ") ")
	_, _ = fmt.Sscan(behindName, &state, &parent)
	return state, parent
}
