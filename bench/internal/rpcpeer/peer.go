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

// farewell is how long the second process of a peer may take to end when the first
// one has: it holds the other end of stderr.
const farewell = 30 * time.Second

// Peer is a program that measures calls between two processes.
type Peer struct {
	name    string
	command []string
	overs   []string // what its calls can go over
}

// Name is that of the library.
func (p *Peer) Name() string { return p.name }

// Run measures, and returns a result for each job, in their order. Its processes
// have ended when it returns. The end of ctx ends it early, with the cause; beside
// that, a program that takes longer than two minutes ends itself.
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
	cmd.Args = append(cmd.Args, c.args()...)
	cmd.Env = append(os.Environ(), "TMPDIR="+folder) // where a program that is killed leaves its files
	cmd.WaitDelay = farewell
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

// results reads what the program prints until it ends: a line for each job.
func (p *Peer) results(stdout io.Reader, c Config) ([]Result, error) {
	lines := bufio.NewScanner(stdout)
	var results []Result
	for lines.Scan() {
		if len(results) == len(c.Jobs) {
			return nil, fmt.Errorf("%w: %s goes on with %.80q", ErrOutput, p.name, lines.Bytes())
		}
		var r Result
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("%w: %s printed %.80q: %w", ErrOutput, p.name, lines.Bytes(), err)
		}
		if err := r.check(c.Over, c.Jobs[len(results)]); err != nil {
			return nil, err
		}
		results = append(results, r)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrOutput, p.name, err)
	}
	return results, nil
}
