package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// child is the second process of a demo, as the first one controls it.
type child struct {
	cmd    *exec.Cmd
	stdin  io.Closer    // the receiver exits when this is closed
	stderr bytes.Buffer // read after the process has exited
	url    string       // where it listens

	// stop closes the stdin of the process and waits for its exit. It kills the process after
	// stopTimeout. The error includes the process's standard error output. Further calls return the
	// same error.
	stop func() error
}

// stopTimeout bounds the exit of a child after its stdin was closed.
const stopTimeout = 10 * time.Second

// startReceiver starts a second process of this program as the receiver, and blocks until that
// process listens, whose URL it stores in the result. The caller must call stop of the result. The
// process is also killed when ctx ends. After an error no process is left.
func startReceiver(ctx context.Context) (*child, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.CommandContext(ctx, program, receiverName)}
	c.cmd.Stderr = &c.stderr
	c.cmd.WaitDelay = stopTimeout
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	c.stop = sync.OnceValue(func() error {
		_ = c.stdin.Close()
		late := time.AfterFunc(stopTimeout, func() { _ = c.cmd.Process.Kill() })
		defer late.Stop()
		if err := c.cmd.Wait(); err != nil {
			return fmt.Errorf("second process: %w: %s", err, bytes.TrimSpace(c.stderr.Bytes()))
		}
		return nil
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("the second process did not start to listen: %w", cmp.Or(c.stop(), err))
	}
	c.url = strings.TrimSpace(line)
	return c, nil
}

// receiver is the hidden command that runs the second process of a demo. It exits when its stdin is
// closed, which happens at the latest when the first process exits.
type receiver struct{}

const receiverName = "demo-receiver"

var receiverEntry = entry{
	name:    receiverName,
	summary: "the second process of a demo",
	help:    "Receives what tpipe demo sends, which starts it.",
	hidden:  true,
	make:    func() command { return &receiver{} },
}

func (*receiver) flags(*flag.FlagSet) {}

// errNoSender is the cause of cancellation when the sender has closed stdin or has died.
var errNoSender = errors.New("the sender has gone")

func (*receiver) run(ctx context.Context, s streams) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		_, _ = io.Copy(io.Discard, s.in)
		cancel(errNoSender)
	}()
	err := serveSender(ctx, s.out)
	if context.Cause(ctx) == errNoSender {
		return nil // no process is left that could receive the report
	}
	return interrupted(ctx, err)
}

// serveSender opens a listener on the loopback interface, prints its URL to out, and accepts one
// pipe. It receives all copies of the weights from that pipe, sends the report, and returns. It
// closes the listener and the pipe. The error is that of listening, accepting, receiving or
// sending.
func serveSender(ctx context.Context, out io.Writer) error {
	c, err := tensorpipe.NewContext(pipe.Options{
		Name: receiverName,
		// Any process of this machine could connect instead of the sender.
		Limits: pipe.Limits{TensorBytes: len(weightsFile), PayloadBytes: 1, MaxTensors: 64},
	})
	if err != nil {
		return err
	}
	defer c.Close()
	l, err := c.Listen(ctx, "uv://127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Fprintln(out, l.URLs()[0])
	p, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	return receive(ctx, p)
}

// receive receives copies of the weights from p until the last copy or the first fault. Then it
// sends the report to the sender, closes p, and returns the error of closing p. A fault is part of
// the report and not an error. If receiving or sending fails it returns that error and does not
// close p.
func receive(ctx context.Context, p *pipe.Pipe) error {
	var r receiverReport
	for last := false; !last && r.Fault == ""; {
		in, err := p.Next(ctx)
		if err != nil {
			return err
		}
		memory := pipe.NewAllocation(in.Descriptor())
		if err := in.Read(ctx, memory); err != nil {
			return err
		}
		last = r.check(in.Descriptor(), memory)
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := p.Write(ctx, &pipe.Message{Metadata: text}); err != nil {
		return err
	}
	return p.Close()
}

// receiverReport is the result of the receiver, which it sends as the metadata of a message.
type receiverReport struct {
	Copies  int    `json:"copies"`
	Tensors int    `json:"tensors"` // of the last copy
	Fault   string `json:"fault,omitempty"`
}

// check counts a received copy of the weights in r and verifies its checksums. d describes the
// message and memory holds its bytes. A fault is recorded in r.Fault. It returns true if this was
// the last copy, after which the sender expects the report.
func (r *receiverReport) check(d *pipe.Descriptor, memory pipe.Allocation) (last bool) {
	var note weightsNote
	err := json.Unmarshal(d.Metadata, &note)
	if err == nil {
		err = verifyWeights(note, d, memory)
	}
	r.Copies++
	r.Tensors = len(d.Tensors)
	if err != nil {
		r.Fault = fmt.Sprintf("copy %d: %v", r.Copies, err)
	}
	return note.Last
}

// readReport waits for the next message of p, which is the receiver's report, and returns the
// report. The error is that of the pipe or ctx, or means that the report is not valid JSON.
func readReport(ctx context.Context, p *pipe.Pipe) (*receiverReport, error) {
	in, err := p.Next(ctx)
	if err != nil {
		return nil, err
	}
	var r receiverReport
	if err := json.Unmarshal(in.Descriptor().Metadata, &r); err != nil {
		return nil, fmt.Errorf("report of the receiver: %w", err)
	}
	return &r, in.Discard(ctx)
}

// verifySent returns nil if the receiver's report r states no fault, the given number of copies,
// and as many tensors in the last copy as w has. Otherwise it returns an error that describes the
// difference.
func (r *receiverReport) verifySent(w *weights, copies int) error {
	switch {
	case r.Fault != "":
		return fmt.Errorf("the receiver reports: %s", r.Fault)
	case r.Copies != copies || r.Tensors != len(w.notes):
		return fmt.Errorf("the receiver got %d copies of %d tensors, sent were %d of %d", r.Copies, r.Tensors, copies, len(w.notes))
	}
	return nil
}
