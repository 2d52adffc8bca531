package rpcpeer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Values of Config.Over: how the two processes of a peer are connected.
const (
	TCP     = "tcp"     // both peers; for Torch its transport uv and its channel basic
	Unix    = "unix"    // GRPC: a Unix socket
	Default = "default" // Torch: its own choice, shared memory and cma within a host
)

// Config describes what a peer measures.
type Config struct {
	Over string // one of the constants above
	Jobs []Job
}

// Job is one measurement. [Add], [Bytes], [Receive], [Send], [Echo], [Remote], [Share],
// [Train], [EndToEnd] and [Backward] return one.
type Job struct {
	What string // name of the job in its Result
	N    int    // calls that count
}

// Add returns a job that makes n calls, with depth calls at a time. Each call adds two 2x2 tensors
// of float32 at the other process. The time of each call is measured from its own start.
func Add(depth, n int) Job { return Job{fmt.Sprint("add@", depth), n} }

// Bytes returns a job that makes n calls with an argument of size bytes, one after the other.
func Bytes(size, n int) Job { return Job{fmt.Sprint("bytes@", size), n} }

// StreamLength is the number of messages of each stream of a job of Receive or Send.
const StreamLength = 10_000

// Receive returns a job of GRPC that opens n streams, one after the other, on each of which the other
// process sends StreamLength messages of size bytes. The time of each is that of the whole stream.
func Receive(size, n int) Job { return Job{fmt.Sprint("receive@", size), n} }

// Send returns a job like that of Receive, but the process that opens the streams sends the messages.
func Send(size, n int) Job { return Job{fmt.Sprint("send@", size), n} }

// Echo returns a job of GRPC that sends n messages of size bytes on one stream, each after the answer
// to the last one.
func Echo(size, n int) Job { return Job{fmt.Sprint("echo@", size), n} }

// Remote returns a job of Torch that makes n references, one after the other, to the sum of two 2x2
// tensors of float32 at the other process. Each is fetched and dropped.
func Remote(n int) Job { return Job{"remote", n} }

// Share returns a job of Torch that makes n references as Remote does. Each reference is passed in a
// call to a third process, which fetches the sum, drops its own reference and returns the sum. After
// the call the first process drops the reference too.
func Share(n int) Job { return Job{"share", n} }

// Train returns a job of Torch that trains the network of tpipe train on three processes for n epochs,
// and tests it after each. The Result has the time of each step, and PerSecond counts steps.
func Train(n int) Job { return Job{"train", n} }

// EndToEnd returns a job of Torch that makes n iterations of the loop of PyTorch's end-to-end test: six
// chained sums of tensors at the other process, a reference to a seventh one, which is fetched, and a
// pass through all of them.
func EndToEnd(n int) Job { return Job{"e2e", n} }

// Backward returns a job of Torch that measures only the n passes of EndToEnd. PerSecond counts whole
// iterations.
func Backward(n int) Job { return Job{"backward", n} }

// Result is the result of a job. Times are in microseconds.
type Result struct {
	What string `json:"what"`
	Over string `json:"over"`
	N    int    `json:"n"`

	P50 float64 `json:"p50_us"`
	P90 float64 `json:"p90_us"`
	P99 float64 `json:"p99_us"`

	PerSecond      float64 `json:"per_s"`
	BytesPerSecond float64 `json:"bytes_per_s"` // of the arguments; 0 for other jobs than Bytes

	// CPU is the CPU time of all processes per call.
	CPU float64 `json:"cpu_us"`
}

// check returns an error that matches ErrConfig unless c is valid for a peer that supports the
// values overs of c.Over. Otherwise it returns nil. It rejects jobs that the program would parse as
// flags.
func (c Config) check(overs []string) error {
	if !slices.Contains(overs, c.Over) {
		return fmt.Errorf("%w: over %q: want %s", ErrConfig, c.Over, strings.Join(overs, " or "))
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

// ErrConfig matches errors about an invalid Config.
var ErrConfig = errors.New("rpcpeer: bad config")

// ErrOutput matches errors about unexpected output of a peer, which is of another version than this
// package.
var ErrOutput = errors.New("rpcpeer: unexpected output")

// MissingError reports that a peer needs something, What, that this machine does not have. It matches
// [errors.ErrUnsupported].
type MissingError struct {
	Peer string
	What string
}

func (e *MissingError) Error() string { return "no " + e.Peer + " here: " + e.What }

// Is reports whether target is [errors.ErrUnsupported].
func (e *MissingError) Is(target error) bool { return target == errors.ErrUnsupported }

// ProcessError reports that a program could not be started or ended unexpectedly, with its standard
// error output.
type ProcessError struct {
	Name   string
	Stderr string
	Err    error
}

func (e *ProcessError) Error() string {
	text := fmt.Sprintf("%s: %v", e.Name, e.Err)
	if e.Stderr != "" {
		text += ": " + e.Stderr
	}
	return text
}

// Unwrap returns the error of starting the program or of its exit.
func (e *ProcessError) Unwrap() error { return e.Err }
