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
	columns := benchColumns{spec: spec, runs: runs, alone: len(runs.B) == 0 && runs.WhyB == nil}
	if head := benchHead(spec, runs); head != t.head {
		t.section(head)
		fmt.Fprintln(t.out, columns.heads())
	}
	size := byteSize(first.SizeBytes).String()
	if columns.alone {
		_, err := fmt.Fprintln(t.out, columns.row(size, "", runs.A))
		return err
	}
	fmt.Fprintln(t.out, columns.side(size, "here", runs.A, runs.WhyA))
	_, err := fmt.Fprintln(t.out, columns.side("", bench.Libtensorpipe{}.Name(), runs.B, runs.WhyB))
	if len(runs.A) > 0 && len(runs.B) > 0 {
		_, err = fmt.Fprintln(t.out, columns.ratios())
	}
	return err
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
		path = "auto: " + path
	}
	if first.Connections > 0 {
		path += " with up to " + plural(first.Connections, "lane")
	}
	facts := append([]string{path, first.Dialect + " dialect"}, benchFacts(spec)...)
	if first.Congestion != "" {
		facts = append(facts, "congestion control "+first.Congestion)
	}
	if len(runs.B) > 0 {
		facts = append(facts, "medians of "+plural(len(runs.B), "pair"))
	}
	return strings.Join(facts, ", ")
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
