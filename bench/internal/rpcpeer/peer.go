// Package rpcpeer runs programs that measure calls with other libraries, for benchmarks that compare
// them with this library in the same run: grpc-go, whose program is a separate module in
// bench/peers/grpc, and torch.distributed.rpc, in bench/peers/torchrpc. Their comments define what is
// measured.
//
// [GRPC] and [Torch] return a [Peer], or an error that matches [errors.ErrUnsupported] if the library is
// missing. [Peer.Run] starts the peer's processes, measures, and ends them. It may be called again.
package rpcpeer

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// exitTimeout bounds the time in which the other processes of a peer, which have the other end of
// stderr, must end after the first one.
const exitTimeout = 30 * time.Second

// Peer is a program that measures calls between processes of another library.
type Peer struct {
	name    string
	command []string
	overs   []string // supported values of Config.Over
}

// Name returns the name of the library.
func (p *Peer) Name() string { return p.name }

// Run starts the peer's program with the jobs and the kind of connection of c, and returns one
// result per job, in the order of the jobs. All processes of the program have ended when it
// returns. The error matches ErrConfig or ErrOutput, is a *ProcessError, the cause of ctx if ctx
// ends first, or that of the folder for the program's temporary files. With an error the results have
// no meaning. The program ends itself after two minutes.
func (p *Peer) Run(ctx context.Context, c Config) (results []Result, err error) {
	if err := c.check(p.overs); err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp("", "rpcpeer")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	cmd := exec.CommandContext(ctx, p.command[0], p.command[1:]...)
	cmd.Args = append(cmd.Args, "--over", c.Over)
	for _, j := range c.Jobs {
		cmd.Args = append(cmd.Args, fmt.Sprintf("%s=%d", j.What, j.N))
	}
	cmd.Env = append(os.Environ(), "TMPDIR="+folder) // a killed program leaves its files there
	cmd.WaitDelay = exitTimeout
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, &ProcessError{Name: p.name, Err: err}
	}
	results, err = p.results(stdout, c)
	if err != nil {
		cancel(err)
	}
	switch err := cmd.Wait(); {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, &ProcessError{Name: p.name, Stderr: strings.TrimSpace(stderr.String()), Err: err}
	case len(results) < len(c.Jobs):
		return nil, fmt.Errorf("%w: %s printed %d results for %d jobs", ErrOutput, p.name, len(results), len(c.Jobs))
	}
	return results, nil
}

// results reads the output of the program until it ends: one result in JSON per line. The error
// matches ErrOutput if a line is not a plausible result of the job at its position, or if there are
// more lines than jobs. results does not report too few lines: the caller compares the number of
// results.
func (p *Peer) results(stdout io.Reader, c Config) ([]Result, error) {
	lines := bufio.NewScanner(stdout)
	var results []Result
	for lines.Scan() {
		if len(results) == len(c.Jobs) {
			return nil, fmt.Errorf("%w: %s continues with %.80q", ErrOutput, p.name, lines.Bytes())
		}
		var r Result
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("%w: %s printed %.80q: %w", ErrOutput, p.name, lines.Bytes(), err)
		}
		j := c.Jobs[len(results)]
		sane := r.What == j.What && r.Over == c.Over && r.N == j.N &&
			0 < r.P50 && r.P50 <= r.P90 && r.P90 <= r.P99 && r.PerSecond > 0 && r.CPU >= 0
		if !sane {
			return nil, fmt.Errorf("%w: %+v; requested were %d of %s over %s", ErrOutput, r, j.N, j.What, c.Over)
		}
		results = append(results, r)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrOutput, p.name, err)
	}
	return results, nil
}
