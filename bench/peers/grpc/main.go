// Command grpc measures unary calls of grpc-go between two processes of one
// machine, as a yardstick for calls between workers.
//
//	grpc [-over tcp|unix] [-limit 2m] JOB...
//
// A job is one of
//
//	add@DEPTH=N    N calls that add two 2x2 tensors of float32, DEPTH in flight
//	bytes@SIZE=N   N calls with SIZE bytes as argument, one behind the other
//
// and is answered by a line of JSON. Times are in microseconds.
//
// # What is measured
//
// A call begins before its arguments are written into the request and ends when
// the answer has been read out of the response. All calls share one connection,
// of which the windows are larger than any message, so that gRPC neither waits
// for credit nor measures the network. A tenth of the calls, but at most 1000, go
// before those that count. cpu_us is processor time of both processes by the
// number of calls, all goroutines of the runtime and of gRPC included.
//
// The server keeps its goroutines from call to call. The garbage collectors are as Go
// has them, without settings.
//
// Messages are bytes for gRPC: the codec hands over the request as it is, and
// copies what comes into memory that is used again, which is less work than
// generated code has. No call has a deadline, because each would travel as a
// header.
//
// # Processes
//
// The server is the same program, started as a child. It ends when its stdin
// does, and so does not outlive the client.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"
)

// longest is the largest message that may be measured.
const longest = 256 << 20

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "grpc:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("grpc", flag.ContinueOnError)
	over := flags.String("over", "tcp", "the connection is of this kind: tcp or unix")
	limit := flags.Duration("limit", 2*time.Minute, "everything must be over in this time")
	server := flags.String("serve", "", "be the server, listening at this address")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *over != "tcp" && *over != "unix" {
		return fmt.Errorf("-over %s: it is tcp or unix", *over)
	}
	if *server != "" {
		return serve(*over, *server)
	}
	jobs, err := parseJobs(flags.Args())
	if err != nil {
		return err
	}
	// Not a deadline, which would become a header of every call.
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	late := time.AfterFunc(*limit, func() { cancel(fmt.Errorf("not over in %v", *limit)) })
	defer late.Stop()
	if err := measureAll(ctx, *over, jobs); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return err
	}
	return nil
}
