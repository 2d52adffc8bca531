package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// Program describes how to start a program.
type Program struct {
	Path string
	Args []string
	Env  []string // added to the environment of this process
}

// exitTimeout bounds the time in which a process must end after its stdin was closed.
const exitTimeout = 30 * time.Second

// maxLine bounds the length of a line of a process: the samples of the largest measurement.
const maxLine = 256 << 20

// process is a running program with a line-based protocol on its standard streams. It must end when its
// stdin is closed, and is killed when the ctx with which it was started ends.
type process struct {
	name   string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Scanner
	stderr bytes.Buffer // must be read only after the process has ended

	// end closes stdin and waits until the process has exited; it kills the process after exitTimeout.
	// It may be called several times and must be called once. The error is a *ProcessError.
	end func() error
}

// startProcess starts a program as a child process. name stands for the process in errors. The
// caller must call the result's function end. The process is killed when ctx ends. The error is
// that of starting.
func startProcess(ctx context.Context, name string, program Program) (*process, error) {
	p := &process{name: name, cmd: exec.CommandContext(ctx, program.Path, program.Args...)}
	p.cmd.Env = append(os.Environ(), program.Env...)
	p.cmd.Stderr = &p.stderr
	p.cmd.WaitDelay = exitTimeout
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.stdout = bufio.NewScanner(stdout)
	p.stdout.Buffer(nil, maxLine)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.end = sync.OnceValue(func() error {
		_ = p.stdin.Close()
		late := time.AfterFunc(exitTimeout, func() { _ = p.cmd.Process.Kill() })
		err := p.cmd.Wait()
		if !late.Stop() {
			err = fmt.Errorf("it did not end in %v", exitTimeout)
		}
		if err != nil {
			return &ProcessError{Name: p.name, Stderr: strings.TrimSpace(p.stderr.String()), Err: err}
		}
		return nil
	})
	return p, nil
}

// rootCause returns the error that explains the others, or nil if there is none. failed is the error of
// a measurement, and ended are the exit errors of its processes; any may be nil. If a process was
// killed, rootCause returns its error. If failed matches pipe.ErrPeerLost, it returns the first exit
// error, or failed if there is none. Otherwise it returns failed, or the first exit error if failed is
// nil.
func rootCause(failed error, ended ...error) error {
	for _, err := range ended {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() < 0 {
			return err
		}
	}
	how := cmp.Or(ended...)
	if errors.Is(failed, pipe.ErrPeerLost) {
		return cmp.Or(how, failed)
	}
	return cmp.Or(failed, how)
}

// line blocks until the process has printed a line, and returns it without its end. If the process
// has closed its output instead, line waits for its exit and returns a *ProcessError. If the line
// is too long or cannot be read, the error matches ErrProtocol.
func (p *process) line() (string, error) {
	if p.stdout.Scan() {
		return p.stdout.Text(), nil
	}
	if err := p.stdout.Err(); err != nil {
		return "", fmt.Errorf("%w: %s: %w", ErrProtocol, p.name, err)
	}
	return "", p.exitError()
}

// exitError closes the stdin of a process that ended unexpectedly, waits for its exit, and returns
// a *ProcessError, also if the exit status is 0.
func (p *process) exitError() error {
	return cmp.Or(p.end(), error(&ProcessError{Name: p.name, Err: io.ErrUnexpectedEOF}))
}

// decode reads the next line of the process as JSON into the variable that v points to. The error
// matches ErrProtocol for an unreadable line or invalid JSON. It is a *ProcessError if the process
// has closed its output instead.
func (p *process) decode(v any) error {
	text, err := p.line()
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(text), v); err != nil {
		return fmt.Errorf("%w: process %s printed %.80q: %w", ErrProtocol, p.name, text, err)
	}
	return nil
}

// request sends the value line to the process as a line of JSON, and decodes the next line that the
// process prints into the variable that answer points to. The error matches ErrProtocol for invalid
// output, or is a *ProcessError if the process has ended.
func (p *process) request(line, answer any) error {
	if err := p.send(line); err != nil {
		return err
	}
	return p.decode(answer)
}

// send writes v to the stdin of the process as a line of JSON. If that fails, send waits for the
// process to exit and returns a *ProcessError.
func (p *process) send(v any) error {
	if json.NewEncoder(p.stdin).Encode(v) != nil { // the process does not read any more
		return p.exitError()
	}
	return nil
}

// job is the first line that a child process reads: what it should do.
type job struct {
	Role string `json:"role"`
	Spec Spec   `json:"spec"`
	URL  string `json:"url"` // to dial, for roleTrips

	For time.Duration `json:"for"` // duration of the round trips

	Connections int `json:"connections"` // to accept, for roleTCP

	Trace bool `json:"trace"` // for roleServer: collect the events of the pipes

	catalog Catalog
}

const (
	// roleServer listens, prints its serverInfo, serves every pipe, and prints its usage for
	// each further line that it reads. With Trace it stops at the first one instead, and prints
	// its events.
	roleServer = "server"

	// roleTrips opens a pipe, makes warm-up round trips, prints an empty object, waits for a
	// line, makes round trips for a time, and prints its samples.
	roleTrips = "trips"

	// roleTCP listens on TCP, prints its serverInfo, accepts connections and reads the messages
	// of one direction.
	roleTCP = "tcp"

	// roleEcho listens, prints its serverInfo, and sends back every message of every pipe.
	roleEcho = "echo"

	// roleHub prints an empty object, and then does and answers one hubRequest for each line.
	roleHub = "hub"
)

// serverInfo is the first line that a server process prints: where it listens.
type serverInfo struct {
	URLs []string `json:"urls"`
}

// RunChild runs the second process of a measurement. It reads a job, a line of JSON, from in, does
// the job, and prints its results to out. If in or ctx ends during the job, RunChild ends the job
// and returns nil. Otherwise the error matches ErrProtocol for an invalid job, or is that of the job
// or of reading it. A goroutine may go on reading from in after RunChild has returned.
func RunChild(ctx context.Context, in io.Reader, out io.Writer, catalog Catalog) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines := bufio.NewScanner(in)
	if !lines.Scan() {
		return lines.Err() // the parent ended before it sent a job
	}
	j := job{catalog: catalog}
	if err := json.Unmarshal(lines.Bytes(), &j); err != nil {
		return fmt.Errorf("%w: job %.80q: %w", ErrProtocol, lines.Text(), err)
	}
	requests := make(chan string)
	go func() {
		defer cancel()
		for lines.Scan() {
			select {
			case requests <- lines.Text():
			case <-ctx.Done():
			}
		}
	}()
	answers, err := json.NewEncoder(out), error(nil)
	switch j.Role {
	case roleServer:
		err = j.serve(ctx, requests, answers)
	case roleTrips:
		err = j.trips(ctx, requests, answers)
	case roleTCP:
		err = j.receive(ctx, answers)
	case roleEcho:
		err = j.echo(ctx, answers)
	case roleHub:
		err = j.hub(ctx, requests, answers)
	default:
		err = fmt.Errorf("%w: role %q", ErrProtocol, j.Role)
	}
	if ctx.Err() != nil {
		return nil // the parent does not read any more
	}
	return err
}

// serve does the job roleServer: it listens, prints a serverInfo to out, and serves pipes until ctx
// ends or a pipe fails. For each request it prints the resource usage of this process. But if
// j.Trace is true, it closes the pipes at the first request, prints their events, and returns. The
// error is that of the first pipe that failed, of listening or closing, or of out; it is nil if ctx
// ended.
func (j job) serve(ctx context.Context, requests <-chan string, out *json.Encoder) error {
	var trace *Trace
	if j.Trace {
		trace = &Trace{}
	}
	s, err := listen(ctx, j.Spec, j.catalog, trace)
	if err != nil {
		return err
	}
	defer s.close()
	if err := out.Encode(serverInfo{s.listener.URLs()}); err != nil {
		return err
	}
	for {
		select {
		case <-requests:
			if j.Trace {
				return cmp.Or(s.close(), out.Encode(trace.snapshot()))
			}
			if err := out.Encode(ownUsage()); err != nil {
				return err
			}
		case err := <-s.failed:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

// trips does the job roleTrips: it opens a pipe to j.URL, makes warm-up round trips, prints an
// empty object to out, and waits for a request. Then it makes round trips for the time j.For and
// prints their durations. The error is that of Spec.options, of withClient or of the round trips,
// that of out, or ctx.Err() if ctx ends before the request.
func (j job) trips(ctx context.Context, requests <-chan string, out *json.Encoder) error {
	opts, err := j.Spec.options("bench client", j.catalog)
	if err != nil {
		return err
	}
	return withClient(ctx, j.Spec, opts, nil, j.URL, func(c *client, _ *pipe.Plan) error {
		if _, _, err := c.roundTrips(warmUps(1000), 0); err != nil {
			return err
		}
		if err := out.Encode(struct{}{}); err != nil {
			return err
		}
		select {
		case <-requests:
		case <-ctx.Done():
			return ctx.Err()
		}
		const batch = 256
		var all []time.Duration
		for start := time.Now(); time.Since(start) < j.For; {
			samples, _, err := c.roundTrips(batch, 0)
			if err != nil {
				return err
			}
			all = append(all, samples...)
		}
		return out.Encode(Samples{RoundTrips: all})
	})
}
