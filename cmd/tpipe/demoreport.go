package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// demoReport is the result of a demo, in the form in which it is printed as
// JSON.
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

func (r *demoReport) printJSON(w io.Writer) error {
	r.Seconds = r.took.Seconds()
	r.GBps = gigabytesPerSecond(r.Bytes, r.took)
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// printHead prints what is known once the pipe is open.
func (r *demoReport) printHead(w io.Writer, verbose bool) {
	fmt.Fprintf(w, "process %d sends to process %d at %s\n", r.Sender, r.Receiver, r.URL)
	printPlan(w, r.Plan, verbose)
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
