package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/bench"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// benchTable prints results for people.
type benchTable struct {
	out  io.Writer
	head string // of the table that is being printed
}

// measured implements benchReport.
func (t *benchTable) measured(spec bench.Spec, runs *bench.Comparison) error {
	first := either(runs)[0]
	columns := benchColumns{spec: spec, runs: runs, alone: benchAlone(runs)}
	if head := benchHead(spec, runs); head != t.head {
		t.section(head)
		fmt.Fprintln(t.out, columns.heads())
	}
	size := byteSize(first.SizeBytes).String()
	if len(runs.A) > 0 {
		fmt.Fprintln(t.out, columns.row(size, "here", runs.A))
		size = ""
	}
	if len(runs.B) > 0 {
		fmt.Fprintln(t.out, columns.row(size, runs.B[0].Subject, runs.B))
	}
	if len(runs.A) > 0 && len(runs.B) > 0 {
		fmt.Fprintln(t.out, columns.ratios())
	}
	return nil
}

// absent implements benchReport.
func (t *benchTable) absent(spec bench.Spec, why error) error {
	t.section(fmt.Sprintf("transport %s, channel %s: not measured: %s", orAuto(spec.Transports), orAuto(spec.Channels), oneLine(why)))
	return nil
}

// section begins something that has a line above it.
func (t *benchTable) section(head string) {
	if t.head != "" {
		fmt.Fprintln(t.out)
	}
	t.head = head
	fmt.Fprintln(t.out, head)
}

// either is a side that was measured.
func either(runs *bench.Comparison) []*bench.Result {
	if len(runs.A) > 0 {
		return runs.A
	}
	return runs.B
}

// benchHead says what the rows of a table have in common.
func benchHead(spec bench.Spec, runs *bench.Comparison) string {
	first := either(runs)[0]
	path := fmt.Sprintf("transport %s, channel %s", first.Transport, first.Channel)
	if len(spec.Transports) == 0 || len(spec.Channels) == 0 {
		path = pathName(spec) + ": " + path
	}
	facts := append([]string{path + benchLanes(first), first.Dialect + " dialect"}, benchFacts(spec)...)
	if first.Congestion != "" {
		facts = append(facts, "congestion control "+first.Congestion)
	}
	facts = append(facts, benchPairs(runs)...)
	facts = append(facts, benchPeerPath(runs)...)
	return strings.Join(facts, ", ") + without("this library", runs.WhyA) + without(bench.Libtensorpipe{}.Name(), runs.WhyB)
}

// benchPairs says of how many runs figures are the medians, where that was asked
// for.
func benchPairs(runs *bench.Comparison) []string {
	if benchAlone(runs) {
		return nil
	}
	return []string{"medians of " + plural(len(either(runs)), "pair")}
}

// benchPeerPath says what the peer was measured on, where that is another path.
func benchPeerPath(runs *bench.Comparison) []string {
	if len(runs.A) == 0 || len(runs.B) == 0 {
		return nil
	}
	ours, theirs := runs.A[0], runs.B[0]
	if ours.Transport == theirs.Transport && ours.Channel == theirs.Channel {
		return nil
	}
	return []string{fmt.Sprintf("%s on transport %s, channel %s%s", theirs.Subject, theirs.Transport, theirs.Channel, benchLanes(theirs))}
}

// benchLanes are the lanes of a path that has some.
func benchLanes(r *bench.Result) string {
	if r.Connections == 0 {
		return ""
	}
	return " with up to " + plural(r.Connections, "lane")
}

// benchAlone is true where there is no library to compare with.
func benchAlone(runs *bench.Comparison) bool { return len(runs.B) == 0 && runs.WhyB == nil }

// without is a line about the one of two libraries that was not measured.
func without(subject string, why error) string {
	if why == nil {
		return ""
	}
	return "\nwithout " + subject + ": " + oneLine(why)
}

// benchFacts says how a spec is measured, apart from the path and the size.
func benchFacts(spec bench.Spec) []string {
	facts := []string{fmt.Sprint(spec.Depth, " in flight"), spec.Buffers + " buffers"}
	if spec.Data != "" && spec.Data != bench.DataPattern {
		facts = append(facts, "tensors of "+spec.Data)
	}
	if spec.Compression != pipe.CompressionNone {
		facts = append(facts, "compressed by "+spec.Compression.String())
	}
	if spec.Named {
		facts = append(facts, "target device named")
	}
	if spec.NoSpin {
		facts = append(facts, "no spinning")
	}
	if spec.OneProcess {
		facts = append(facts, "both ends in one process")
	}
	return facts
}
