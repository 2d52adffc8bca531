// Command grpc measures unary calls of grpc-go between two processes of one machine, for comparison
// with calls between workers.
//
//	grpc [-over tcp|unix] [-limit 2m] JOB...
//
// A job is one of
//
//	add@DEPTH=N    N calls that add two 2x2 tensors of float32, DEPTH in flight
//	bytes@SIZE=N   N calls with SIZE bytes as argument, one after the other
//
// Each job prints a line of JSON. Times are in microseconds.
//
// # What is measured
//
// A call begins before its arguments are written into the request and ends when the reply has been read
// from the response. All calls share one connection. Its windows are larger than any message, so that
// gRPC neither waits for credit nor measures the network. A tenth of the calls, but at most 1000, are
// made before those that count. cpu_us is the CPU time of both processes, all goroutines included,
// divided by the number of calls.
//
// The server reuses its goroutines. The garbage collectors have default settings.
//
// For gRPC messages are bytes: the codec passes the request as it is, and copies a received message into
// reused memory, which is less work than generated code does. Calls have no deadline, because gRPC would
// send it as a header.
//
// # Processes
//
// The server is the same program, started as a child. It ends when its stdin does, so it does not outlive
// the client.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"
)

// maxMessage is the size of the largest message.
const maxMessage = 256 << 20

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "grpc:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("grpc", flag.ContinueOnError)
	over := flags.String("over", "tcp", "kind of connection: tcp or unix")
	limit := flags.Duration("limit", 2*time.Minute, "time limit for all jobs together")
	server := flags.String("serve", "", "run as the server and listen at this address")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *over != "tcp" && *over != "unix" {
		return fmt.Errorf("-over %s: want tcp or unix", *over)
	}
	if *server != "" {
		return serve(*over, *server)
	}
	jobs, err := parseJobs(flags.Args())
	if err != nil {
		return err
	}
	// A deadline would be sent as a header with every call.
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	late := time.AfterFunc(*limit, func() { cancel(fmt.Errorf("not finished in %v", *limit)) })
	defer late.Stop()
	if err := measureAll(ctx, *over, jobs); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return err
	}
	return nil
}
