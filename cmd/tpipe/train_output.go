package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tensorpipe-go/tensorpipe/cmd/tpipe/internal/chart"
	"github.com/tensorpipe-go/tensorpipe/cmd/tpipe/internal/train"
)

// trainScreen shows a training: a line for the first and some later epochs and the result on stdout, or only the
// result as JSON, and on a terminal a progress bar.
type trainScreen struct {
	streams
	json  bool
	bar   bool // stderr is a terminal
	every int  // epochs from line to line
	drawn time.Time
}

// trainLines is the number of lines for epochs after the first one.
const trainLines = 10

func newTrainScreen(s streams, json bool, epochs int) *trainScreen {
	return &trainScreen{streams: s, json: json, bar: isTerminal(s.err), every: (epochs + trainLines - 1) / trainLines}
}

// show shows the progress after a step.
func (s *trainScreen) show(p train.Progress) {
	rate := float64(p.Step) / p.Took.Seconds()
	if p.Tested && !s.json && (p.Epoch == 1 || p.Epoch%s.every == 0 || p.Step == p.Steps) {
		s.clear()
		if p.Epoch == 1 {
			fmt.Fprintln(s.out, "epoch      loss  accuracy  steps/s")
		}
		fmt.Fprintf(s.out, "%5d  %8.4f  %6.1f %%  %7.0f\n", p.Epoch, p.Loss, 100*p.Accuracy, rate)
	}
	if !s.bar || time.Since(s.drawn) < refresh {
		return
	}
	s.drawn = time.Now()
	full := barWidth * p.Step / p.Steps
	text := fmt.Sprintf("[%s%s] %3d%%  epoch %d  loss %.4f", strings.Repeat("=", full),
		strings.Repeat(" ", barWidth-full), 100*p.Step/p.Steps, p.Epoch, p.Loss)
	if !math.IsNaN(p.Accuracy) {
		text += fmt.Sprintf("  accuracy %.1f %%", 100*p.Accuracy)
	}
	fmt.Fprintf(s.err, "\r\x1b[K%s  %.0f steps/s", text, rate)
}

// clear erases the progress bar, until the next call of show.
func (s *trainScreen) clear() {
	if !s.drawn.IsZero() {
		fmt.Fprint(s.err, "\r\x1b[K")
		s.drawn = time.Time{}
	}
}

// result prints the result of a training.
func (s *trainScreen) result(r *train.Result) error {
	if s.json {
		return json.NewEncoder(s.out).Encode(r)
	}
	t := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nworker\tprocess\tcalls served\tgradients received\tparameters")
	for _, w := range r.Workers {
		fmt.Fprintf(t, "%s\t%d\t%d\t%s in %s\t%d\n", w.Name, w.PID, w.Calls,
			byteSize(w.GradientBytes), plural(int(w.GradientMessages), "message"), w.Parameters)
	}
	t.Flush()
	for _, p := range r.Paths {
		fmt.Fprintf(s.out, "%s - %s: %s\n", p.From, p.To, p.Path)
	}
	fmt.Fprintf(s.out, "\n%s, %.0f a second: loss %.4f, accuracy %.1f %% on %d other images\n",
		plural(r.Steps, "step"), r.StepsPerSecond, r.Losses[len(r.Losses)-1],
		100*r.TestAccuracy[len(r.TestAccuracy)-1], train.Rows-train.TrainN)
	printCurve(s.out, r.Losses)
	return nil
}

// The size of the curve on a terminal.
const (
	curveWidth  = 64
	curveHeight = 10
)

// printCurve draws the means of consecutive parts of values, from 0 to the largest.
func printCurve(w io.Writer, values []float64) {
	columns := min(curveWidth, len(values))
	means := make([]float64, columns)
	top := 0.0
	for i := range means {
		part := values[i*len(values)/columns : (i+1)*len(values)/columns]
		for _, v := range part {
			means[i] += v / float64(len(part))
		}
		top = max(top, means[i])
	}
	if top == 0 {
		top = 1
	}
	for row := curveHeight - 1; row >= 0; row-- {
		line := make([]byte, columns)
		for i, v := range means {
			line[i] = ' '
			if at := int(v / top * curveHeight); min(at, curveHeight-1) == row {
				line[i] = '*'
			}
		}
		fmt.Fprintf(w, "%7.3f |%s\n", top*float64(row+1)/curveHeight, strings.TrimRight(string(line), " "))
	}
	fmt.Fprintf(w, "   loss +%s step %d\n", strings.Repeat("-", columns), len(values))
}

// chartPoints bounds the points of a line in the chart. More losses are replaced by means.
const chartPoints = 500

// trainChart returns the curves of the loss and the accuracy by step.
func trainChart(r *train.Result) *chart.Chart {
	var losses, accuracy []chart.Point
	size := (len(r.Losses) + chartPoints - 1) / chartPoints
	for first := 0; first < len(r.Losses); first += size {
		part := r.Losses[first:min(first+size, len(r.Losses))]
		mean := 0.0
		for _, v := range part {
			mean += v / float64(len(part))
		}
		losses = append(losses, chart.Point{Size: float64(first + len(part)), Value: mean})
	}
	for i, v := range r.TestAccuracy {
		step := (i + 1) * len(r.Losses) / len(r.TestAccuracy)
		accuracy = append(accuracy, chart.Point{Size: float64(step), Value: 100 * v})
	}
	plain := func(v float64) string { return fmt.Sprintf("%.4g", v) }
	percent := func(v float64) string { return plain(v) + " %" }
	c := r.Config
	return &chart.Chart{
		Title: "Training of a network in three processes",
		Note: fmt.Sprintf("%d hidden units, batches of %d, learning rate %g, %s, %.0f steps a second",
			c.Hidden, c.Batch, c.LR, plural(c.Epochs, "epoch"), r.StepsPerSecond),
		Size: "step", Sizes: plain, Linear: true,
		Panels: []chart.Panel{{Title: "loss", Values: plain}, {Title: "accuracy on the other images", Values: percent}},
		Series: []chart.Series{
			{Name: "loss", Kind: chart.Curve, Lines: [][]chart.Point{losses}},
			{Name: "accuracy", Hue: 1, Lines: [][]chart.Point{nil, accuracy}},
		},
	}
}
