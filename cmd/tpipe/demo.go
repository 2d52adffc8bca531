package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// demo is the command demo, which transfers tensors between two processes of this program.
type demo struct {
	copies  int
	verbose bool
	json    bool
}

var demoEntry = entry{
	name:    "demo",
	usage:   "[flags]",
	summary: "send the weights of a network to a second process, which checks them",
	help: `Starts a second process and sends it the tensors of a safetensors file, the
weights of a small network, through a pipe over TCP. The receiver learns name,
type and shape of each tensor from the metadata, checks every byte by checksum,
writes the same file again, and reports back.`,
	make: func() command { return &demo{} },
}

func (d *demo) flags(fs *flag.FlagSet) {
	fs.IntVar(&d.copies, "copies", 100, "`number` of times the weights are sent")
	verboseFlag(fs, &d.verbose)
	fs.BoolVar(&d.json, "json", false, "print the result as JSON")
}

func (d *demo) run(ctx context.Context, s streams) error {
	if d.copies < 1 || d.copies > maxCount {
		return usageErrorf("-copies %d: want 1 to %d", d.copies, maxCount)
	}
	w, err := loadWeights(weightsFile)
	if err != nil {
		return err
	}
	receiver, err := startReceiver(ctx)
	if err != nil {
		return interrupted(ctx, err)
	}
	defer receiver.stop()
	r := &demoReport{
		Sender: os.Getpid(), Receiver: receiver.cmd.Process.Pid, URL: receiver.url,
		Tensors: w.notes, FileSHA256: w.file, Copies: d.copies, Bytes: d.copies * w.bytes,
	}
	if err := errors.Join(d.transfer(ctx, w, r, s), receiver.stop()); err != nil {
		return interrupted(ctx, err)
	}
	if d.json {
		r.Seconds = r.took.Seconds()
		r.GBps = gigabytesPerSecond(r.Bytes, r.took)
		return printJSON(s.out, r)
	}
	r.print(s.out, w)
	return nil
}

// transfer opens a pipe to the receiver at r.URL, sends all copies of the weights w, and waits for
// the receiver's report. It sets r.Plan and, if it gets the report, r.took. Unless the result is
// printed as JSON, it prints the path to s.out. It fails if the receiver found a fault or did not
// receive all copies.
func (d *demo) transfer(ctx context.Context, w *weights, r *demoReport, s streams) error {
	c, err := tensorpipe.NewContext(pipe.Options{Name: "demo"})
	if err != nil {
		return err
	}
	defer c.Close()
	p, err := c.Dial(ctx, r.URL)
	if err != nil {
		return err
	}
	r.Plan = p.Plan()
	if !d.json {
		fmt.Fprintf(s.out, "process %d sends to process %d at %s\n", r.Sender, r.Receiver, r.URL)
		printPlan(s.out, r.Plan, d.verbose)
	}
	start := time.Now()
	sendErr := d.send(ctx, p, w)
	// A receiver that found a fault reports it before it closes the pipe.
	report, err := readReport(ctx, p)
	if err != nil {
		return cmp.Or(sendErr, err)
	}
	r.took = time.Since(start)
	return report.verifySent(w, d.copies)
}

// send writes d.copies messages to p, each with all tensors of w. The last one is marked as the
// last. It stops at the first error and returns it.
func (d *demo) send(ctx context.Context, p *pipe.Pipe, w *weights) error {
	for i := range d.copies {
		m, err := w.message(i == d.copies-1)
		if err != nil {
			return err
		}
		if err := p.Write(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// demoReport is the result of a demo, in its JSON form.
type demoReport struct {
	Sender     int          `json:"sender_pid"`
	Receiver   int          `json:"receiver_pid"`
	URL        string       `json:"url"`
	Plan       *pipe.Plan   `json:"plan"`
	Tensors    []tensorNote `json:"tensors"`
	FileSHA256 string       `json:"file_sha256"` // the same at both ends
	Copies     int          `json:"copies"`
	Bytes      int          `json:"bytes"` // of all copies
	Seconds    float64      `json:"seconds"`
	GBps       float64      `json:"gb_per_s"` // 10^9 bytes per second, checking included

	took time.Duration
}

func (r *demoReport) print(w io.Writer, weights *weights) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "tensor\ttype\tshape\tbytes\tsha256")
	for _, n := range r.Tensors {
		shape := strings.ReplaceAll(fmt.Sprint(n.Shape), " ", ", ")
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%.16s\n", n.Name, n.DType, shape, weights.tensors[n.Name].ByteSize(), n.SHA256)
	}
	t.Flush()
	fmt.Fprintf(w, "\n%s of %s, %s: sent and checked in %s, %s\n", plural(r.Copies, "copy"), plural(len(r.Tensors), "tensor"),
		byteSize(r.Bytes), duration(r.took), rate(r.Bytes, r.took))
	fmt.Fprintf(w, "The receiver found every checksum right and wrote the same file again (sha256 %.16s).\n", r.FileSHA256)
}
