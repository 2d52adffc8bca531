package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/bench"
)

// figures returns a result of subject on the path uv/cma for tensors of size bytes. Every figure of
// it is v in its own unit.
func figures(subject string, size int, v float64) *bench.Result {
	p := &bench.Percentiles{P50: v, P90: v, P99: v}
	return &bench.Result{
		Subject: subject, Transport: "uv", Channel: "cma", TripRoute: "cma", OneWayRoute: "cma", Dialect: "native", SizeBytes: size, Depth: 8,
		RTT: p, Cold: p, CPUPerTrip: v, GBps: v, MessagesPerSecond: v, CPUSeconds: v, CPUSecondsPerGB: v, Messages: 1, WireShare: 1,
	}
}

func benchSpec(size int) bench.Spec {
	return bench.Spec{Transports: []string{"uv"}, Channels: []string{"cma"}, Size: size, Depth: 8, Buffers: "pool"}
}

var errNoPath = &bench.PathError{What: "channel cma", Err: errors.New("forbidden")}

// feed passes three results to the report: one for a size that both libraries have, one for a size
// that only the peer has, with a yardstick, and a path that neither library has.
func feed(t *testing.T, to benchReport) {
	t.Helper()
	const small, large = 8, 1 << 20
	require.NoError(t, to.measured(benchSpec(small), &bench.Comparison{
		A: []*bench.Result{figures("tensorpipe-go", small, 2)}, B: []*bench.Result{figures("libtensorpipe", small, 4)},
	}))
	require.NoError(t, to.measured(benchSpec(large), &bench.Comparison{
		B: []*bench.Result{figures("libtensorpipe", large, 4)}, WhyA: errNoPath,
		Yardsticks: map[string][]*bench.Result{"memcpy": {figures("memcpy", large, 16)}},
	}))
	require.NoError(t, to.absent(benchSpec(large), errNoPath))
}

func TestBenchTableOfBoth(t *testing.T) {
	var out bytes.Buffer
	feed(t, &benchTable{out: &out})
	require.Equal(t, `transport uv, channel cma, native dialect, 8 in flight, pool buffers, medians of 1 pair
  size                         p50       p90       p99  cold p50       CPU     one way        CPU    of memcpy    CPU       of TCP      via
  8 B      here               2 us      2 us      2 us      2 us      2 us   0.002 k/s        2 s            -      -            -      cma
           libtensorpipe      4 us      4 us      4 us      4 us      4 us   0.004 k/s        4 s            -      -            -      cma
           ratio              0.50      0.50      0.50      0.50      0.50        0.50       0.50

transport uv, channel cma, native dialect, 8 in flight, pool buffers, medians of 1 pair
without this library: channel cma: forbidden
  size                         p50       p90       p99  cold p50       CPU     one way        CPU    of memcpy    CPU       of TCP      via
  1 MiB    libtensorpipe      4 us      4 us      4 us      4 us      4 us      4 GB/s     4 s/GB    0.25 (16)   0.25            -      cma

transport uv, channel cma: not measured: channel cma: forbidden
`, out.String())
}

// feedTwoPaths passes one result to the report, in which the two libraries used different paths:
// this library TCP, and the peer shared memory.
func feedTwoPaths(t *testing.T, to benchReport) {
	t.Helper()
	spec, size := benchSpec(1<<20), 1<<20
	spec.PeerTransport, spec.PeerChannel = "shm", "basic"
	ours, theirs := figures("tensorpipe-go", size, 2), figures("libtensorpipe", size, 4)
	ours.OneWayRoute = "basic"
	theirs.Transport, theirs.Channel, theirs.TripRoute, theirs.OneWayRoute = "shm", "basic", "basic", "basic"
	require.NoError(t, to.measured(spec, &bench.Comparison{
		A: []*bench.Result{ours}, B: []*bench.Result{theirs},
		Yardsticks: map[string][]*bench.Result{"tcp": {figures("tcp", size, 8)}},
	}))
}

// TestBenchTableOfTwoPaths checks the table for libraries on different paths: the heading names the
// peer's path, and only the library that used TCP is compared with plain TCP.
func TestBenchTableOfTwoPaths(t *testing.T) {
	var out bytes.Buffer
	feedTwoPaths(t, &benchTable{out: &out})
	require.Equal(t, `transport uv, channel cma, native dialect, 8 in flight, pool buffers, medians of 1 pair, libtensorpipe on transport shm, channel basic
  size                         p50       p90       p99  cold p50       CPU     one way        CPU    of memcpy    CPU       of TCP      via
  1 MiB    here               2 us      2 us      2 us      2 us      2 us      2 GB/s     2 s/GB            -      -     0.25 (8) cma/basic
           libtensorpipe      4 us      4 us      4 us      4 us      4 us      4 GB/s     4 s/GB            -      -            -    basic
           ratio              0.50      0.50      0.50      0.50      0.50        0.50       0.50
`, out.String())
}

func TestBenchLinesOfTwoPaths(t *testing.T) {
	var out bytes.Buffer
	feedTwoPaths(t, newBenchLines(&out))
	require.Contains(t, out.String(), `"transport":"uv","channel":"cma","dialect":"native","peer_transport":"shm","peer_channel":"basic"`)
	require.Contains(t, out.String(), `"subject":"tensorpipe-go/tcp"`)
	require.NotContains(t, out.String(), `"subject":"libtensorpipe/tcp"`)

	out.Reset()
	spec := benchSpec(8)
	spec.PeerChannel = "mpt_uv"
	require.NoError(t, newBenchLines(&out).measured(spec, &bench.Comparison{A: []*bench.Result{figures("tensorpipe-go", 8, 2)}, WhyB: errNoPath}))
	require.Contains(t, out.String(), `{"subject":"libtensorpipe","transport":"uv","channel":"mpt_uv","size_bytes":8,`)
}

func TestBenchDrawingOfTwoPaths(t *testing.T) {
	var d benchDrawing
	feedTwoPaths(t, &d)
	c := d.chart()
	require.Equal(t, "uv/cma, tensorpipe-go (native)", c.Series[0].Name)
	require.Equal(t, "shm/basic, libtensorpipe (native)", c.Series[1].Name)
	require.NotEqual(t, c.Series[0].Hue, c.Series[1].Hue)
}

// TestBenchVia checks the column "via": one route if round trips and one-way messages used the same
// one or only one of them was measured, both if they differ, and "-" if there is none.
func TestBenchVia(t *testing.T) {
	for want, r := range map[string]bench.Result{
		"cma":        {TripRoute: "cma", OneWayRoute: "cma"},
		"inline/cma": {TripRoute: "inline", OneWayRoute: "cma"},
		"inline":     {TripRoute: "inline"},
		"basic":      {OneWayRoute: "basic"},
		"-":          {},
	} {
		require.Equal(t, want, via(&r))
	}
}

func TestBenchLinesOfBoth(t *testing.T) {
	var out bytes.Buffer
	feed(t, newBenchLines(&out))
	var subjects []string
	for line := range strings.Lines(out.String()) {
		subject, _, _ := strings.Cut(strings.TrimPrefix(line, `{"subject":"`), `"`)
		subjects = append(subjects, subject)
	}
	require.Equal(t, []string{
		"tensorpipe-go", "libtensorpipe", "tensorpipe-go/libtensorpipe",
		"libtensorpipe", "memcpy", "libtensorpipe/memcpy", "tensorpipe-go", "tensorpipe-go",
	}, subjects)
	require.Contains(t, out.String(), `"rate_ratio":0.25`)
	require.Equal(t, 2, strings.Count(out.String(), `"not_measured":"channel cma: forbidden"`))
}

// TestBenchMissingPath checks that a path that does not exist is measured and reported once, even
// if several specs for different sizes name it.
func TestBenchMissingPath(t *testing.T) {
	var out bytes.Buffer
	missing := absentSubject{}
	run := benchRun{self: &missing, pairs: 1, show: []benchReport{newBenchLines(&out)}}
	other := benchSpec(8)
	other.Channels = []string{"basic"}
	require.NoError(t, run.all(t.Context(), []bench.Spec{benchSpec(8), benchSpec(16), other}))
	require.Equal(t, 2, missing.tried)
	require.Equal(t, 2, strings.Count(out.String(), "not_measured"))
}

// absentSubject is a subject without any path.
type absentSubject struct{ tried int }

func (*absentSubject) Name() string { return "nobody" }

func (a *absentSubject) Measure(context.Context, bench.Spec) (*bench.Result, error) {
	a.tried++
	return nil, errNoPath
}

func TestBenchSVG(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bench.svg")
	_, stderr, code := tpipe(t, "bench", "-transport", "uv", "-channel", "basic", "-count", "3", "-size", "0,8,100KiB", "-svg", path)
	require.Zero(t, code, stderr)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	requireXML(t, text)
	for _, want := range []string{"uv/basic, tensorpipe-go (native)", "memcpy", "tcp, 1 connection", "100 KiB", " GB/s", "8 in flight, default buffers"} {
		require.Contains(t, string(text), want)
	}
}

// TestBenchSVGWithPeer checks that the chart of a bench with a peer has one line for each library
// and each yardstick, with the same number of points, also if the peer's path differs.
func TestBenchSVGWithPeer(t *testing.T) {
	if err := (bench.Libtensorpipe{}).Build(); errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	for peerPath, args := range map[string]string{"uv/basic": "", "uv/mpt_uv": "-peer-channel mpt_uv -lanes 2"} {
		path := filepath.Join(t.TempDir(), "bench.svg")
		line := "bench -peer libtensorpipe -pairs 1 -transport uv -channel basic -count 3 -size 0,8,100KiB " + args
		_, stderr, code := tpipe(t, append(strings.Fields(line), "-svg", path)...)
		require.Zero(t, code, stderr)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		requireXML(t, text)
		const library = 3 + 2 // round trips of all sizes, rates of those that are not 0
		for name, dots := range map[string]int{
			"uv/basic, tensorpipe-go (native)": library, peerPath + ", libtensorpipe (compatible)": library,
			"memcpy": 1, "tcp, 1 connection": 1,
		} {
			require.Equal(t, 1, strings.Count(string(text), ">"+name+"</text>"), name)
			require.Equal(t, dots, strings.Count(string(text), "<title>"+name+", "), name)
		}
		require.Equal(t, 4, strings.Count(string(text), `class="entry"`), "and no other lines")
	}
}

func requireXML(t *testing.T, text []byte) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(text))
	for {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
	}
}

// TestBenchDrawing checks the series of a chart: libraries on the same path share a colour, another
// path has another one, and sizes that a library did not measure have no point.
func TestBenchDrawing(t *testing.T) {
	d := &benchDrawing{}
	feed(t, d)
	c := d.chart()
	var names []string
	for _, s := range c.Series {
		names = append(names, s.Name)
	}
	require.Equal(t, []string{"uv/cma, tensorpipe-go (native)", "uv/cma, libtensorpipe (native)", "memcpy"}, names)
	require.Equal(t, c.Series[0].Hue, c.Series[1].Hue)
	require.Len(t, c.Series[0].Lines[0], 1)
	require.Len(t, c.Series[1].Lines[0], 2)
	require.Equal(t, 4.0, c.Series[1].Lines[1][1].Value)
	require.Equal(t, 1, d.hue("shm/basic", 0), "another path has another colour")
	f, err := openOutput("-svg", filepath.Join(t.TempDir(), "bench.svg"))
	require.NoError(t, err)
	require.NoError(t, f.write(c))
}

// TestBenchOutputIsDiscarded checks that discard keeps the content of a file that existed and
// removes a file that openOutput has created. An error of openOutput names the flag.
func TestBenchOutputIsDiscarded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bench.svg")
	d, err := openOutput("-svg", path)
	require.NoError(t, err)
	d.discard()
	require.NoFileExists(t, path)
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o600))
	d, err = openOutput("-svg", path)
	require.NoError(t, err)
	d.discard()
	kept, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "old", string(kept))

	_, err = openOutput("-svg", filepath.Join(path, "under-a-file"))
	require.ErrorContains(t, err, "-svg: ")
}
