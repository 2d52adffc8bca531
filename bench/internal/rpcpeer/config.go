package rpcpeer

import (
	"fmt"
	"slices"
	"strings"
)

// What the calls of a peer go over.
const (
	TCP     = "tcp"     // both; of Torch its transport uv and its channel basic
	Unix    = "unix"    // GRPC: a Unix socket
	Default = "default" // Torch: what it chooses, shared memory and cma on one host
)

// Config says what to measure.
type Config struct {
	Over string // of the constants above
	Jobs []Job
}

// Job is one measurement, by [Add] or [Bytes].
type Job struct {
	What string // as the Result has it
	N    int    // calls that count
}

// Add adds two 2x2 tensors of float32 at the other process, n times. So many calls as
// depth says are in flight, each of which counts from its beginning; 1 is one call
// behind the other.
func Add(depth, n int) Job { return Job{fmt.Sprint("add@", depth), n} }

// Bytes passes an argument of so many bytes, n times, one call behind the other.
func Bytes(size, n int) Job { return Job{fmt.Sprint("bytes@", size), n} }

// Result is what was measured in a job. Times are in microseconds.
type Result struct {
	What string `json:"what"`
	Over string `json:"over"`
	N    int    `json:"n"`

	P50 float64 `json:"p50_us"`
	P90 float64 `json:"p90_us"`
	P99 float64 `json:"p99_us"`

	PerSecond      float64 `json:"per_s"`
	BytesPerSecond float64 `json:"bytes_per_s"` // of the arguments; 0 of Add

	// CPU is processor time of both processes for a call. Nobody else's is in it.
	CPU float64 `json:"cpu_us"`
}

// check refuses what the program would misread as something else than a job.
func (c Config) check(overs []string) error {
	if !slices.Contains(overs, c.Over) {
		return fmt.Errorf("%w: over %q: it is %s", ErrConfig, c.Over, strings.Join(overs, " or "))
	}
	if len(c.Jobs) == 0 {
		return fmt.Errorf("%w: no jobs", ErrConfig)
	}
	for _, j := range c.Jobs {
		if strings.HasPrefix(j.What, "-") || j.N < 1 {
			return fmt.Errorf("%w: %d calls of %q", ErrConfig, j.N, j.What)
		}
	}
	return nil
}

// args is the command line of a program.
func (c Config) args() []string {
	args := []string{"--over", c.Over}
	for _, j := range c.Jobs {
		args = append(args, fmt.Sprintf("%s=%d", j.What, j.N))
	}
	return args
}

// check makes sure that a result is of that job, and was measured.
func (r Result) check(over string, j Job) error {
	sane := r.What == j.What && r.Over == over && r.N == j.N &&
		0 < r.P50 && r.P50 <= r.P90 && r.P90 <= r.P99 && r.PerSecond > 0 && r.CPU >= 0
	if !sane {
		return fmt.Errorf("%w: %+v; asked for were %d of %s over %s", ErrOutput, r, j.N, j.What, over)
	}
	return nil
}
