package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/bench"
)

// TestBenchGrowth checks the table of few pipes and of few processes, and that the chart has one line
// for each library in each panel that can show it.
func TestBenchGrowth(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("usage of other processes is known on Linux only")
	}
	libraries, rows, peer := []string{"here"}, 1, ""
	if err := (bench.Libtensorpipe{}).Build(); err == nil {
		libraries, rows, peer = append(libraries, "libtensorpipe"), 3, " -peer libtensorpipe -pairs 1"
	} else {
		t.Log("without libtensorpipe: ", err)
	}
	for by, numbers := range map[string]string{"pipes": "1,3", "processes": "2,3"} {
		path := filepath.Join(t.TempDir(), "growth.svg")
		stdout, stderr, code := tpipe(t, append(strings.Fields("bench -transport uv -count 20 -"+by+" "+numbers+peer), "-svg", path)...)
		require.Zero(t, code, stderr)
		lines := strings.Split(strings.TrimSpace(stdout), "\n")
		require.Len(t, lines, 2+2*rows, stdout)
		require.Regexp(t, "^transport uv, .* tensors of 8 B", lines[0])
		require.Equal(t, strings.Fields(by+" bytes shared fds threads idle p50 p99 CPU turn p50 turn p99 turn CPU"), strings.Fields(lines[1]))
		for i, n := range strings.Split(numbers, ",") {
			for k, library := range libraries {
				require.Contains(t, lines[2+i*rows+k], library)
			}
			require.Regexp(t, "^"+n+" +here", lines[2+i*rows])
		}
		drawn, err := os.ReadFile(path)
		require.NoError(t, err)
		requireXML(t, drawn)
		for _, library := range libraries {
			require.Equal(t, 1, strings.Count(string(drawn), ">uv, "+library+"</text>"), "legend")
			for _, unit := range []string{" us", " [kM]B"} {
				require.Regexp(t, "<title>uv, "+library+", 3: [^<]*"+unit, string(drawn))
			}
		}
		require.Equal(t, len(libraries), strings.Count(string(drawn), `class="entry"`), "and no other lines")
		require.Equal(t, len(bench.GrowthFigures()), strings.Count(string(drawn), `class="panel"`))
	}
}

// TestGrowthReport checks that a library that cannot have a number of pipes is printed with the reason and
// is not drawn at that number.
func TestGrowthReport(t *testing.T) {
	var out strings.Builder
	r := &growthReport{out: &out, pairs: 2, compared: true}
	figures := []*bench.Growth{{BytesPerPipe: 2048, DescriptorsPerPipe: 1, IdleCore: 0.5, One: bench.Trips{P50: 10}}}
	r.add(bench.GrowthSpec{Transport: "uv", Pipes: 1}, &bench.GrowthComparison{A: figures, B: figures})
	r.add(bench.GrowthSpec{Transport: "uv", Pipes: 9}, &bench.GrowthComparison{A: figures, WhyB: errors.New("too\nmany")})
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Equal(t, "transport uv, pipes between two processes, tensors of 8 B, medians of 2 pairs", lines[0])
	require.Equal(t, strings.Fields("1 here 2 KiB 0 B 1 0 50 % 10 us 0 us 0 us 0 us 0 us 0 us"), strings.Fields(lines[2]))
	require.Equal(t, strings.Fields("ratio 1 - 1 - 1 1 - - - - -"), strings.Fields(lines[4]))
	require.Equal(t, strings.Fields("libtensorpipe not measured: too; many"), strings.Fields(lines[6]))
	require.Len(t, lines, 7)
	c := r.chart()
	require.Len(t, c.Series, 2)
	require.Len(t, c.Series[0].Lines[0], 2)
	require.Len(t, c.Series[1].Lines[0], 1)
	require.Equal(t, "-1 KiB", growthBytes(-1024))
	require.Equal(t, "6400 %", growthCell(bench.GrowthShare, 64))
}

func TestBenchGrowthUsage(t *testing.T) {
	for args, want := range map[string]string{
		"-pipes 0":                              "want numbers from 1 to 10000000, separated by commas",
		"-pipes 1,,2":                           "want numbers from 1",
		"-pipes 1 -processes 2":                 "-pipes and -processes: want one of the two",
		"-processes 1":                          "1 processes: want 2 to 1024",
		"-pipes 1 -size 8":                      "-size does not apply with -pipes and -processes",
		"-pipes 1 -transport mem":               `transport "mem": the growth is measured over uv and shm`,
		"-pipes 1 -peer gloo":                   `-peer "gloo": want libtensorpipe`,
		"-pipes 1 -pairs 2":                     "-pairs is for runs with -peer",
		"-pipes 1 -svg /dev/null/no":            "-svg: ",
		"-pipes 1 -peer libtensorpipe -pairs 0": "-pairs 0: want 1 to",
	} {
		stdout, stderr, code := tpipe(t, append([]string{"bench"}, strings.Fields(args)...)...)
		require.NotZero(t, code, args)
		require.Empty(t, stdout, args)
		require.Contains(t, stderr, want, args)
	}
}

// TestBenchGrowthProcessesEnd checks that all processes of either library exit when the bench is
// interrupted or killed.
func TestBenchGrowthProcessesEnd(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("children are looked for in /proc")
	}
	programs := []string{benchChildName}
	if err := (bench.Libtensorpipe{}).Build(); err == nil {
		programs = append(programs, "tpbench")
	} else {
		t.Log("without libtensorpipe: ", err)
	}
	for name, end := range map[string]os.Signal{"interrupted": os.Interrupt, "killed": os.Kill} {
		for _, program := range programs {
			t.Run(program+"/"+name, func(t *testing.T) {
				line := "bench -processes 3 -transport uv -count 10000000"
				if program != benchChildName {
					line += " -peer libtensorpipe -pairs 1"
				}
				p := start(t, strings.Fields(line)...)
				var children []int
				require.Eventually(t, func() bool {
					children = childrenOf(p.cmd.Process.Pid, program)
					return len(children) == 3
				}, processTimeout, pollInterval)
				p.signal(end)
				p.wait()
				require.Eventually(t, func() bool { return !slices.ContainsFunc(children, isRunning) }, processTimeout, pollInterval)
			})
		}
	}
}

// childrenOf returns the ids of the children of the process pid that run that program or command.
func childrenOf(pid int, program string) (ids []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		id, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", id))
		if _, parent := processState(id); parent == pid && strings.Contains(string(line), program) {
			ids = append(ids, id)
		}
	}
	return ids
}
