// Command grpc measures calls and streams of grpc-go between two processes of one machine, for comparison
// with calls between workers.
//
//	grpc [-over tcp|unix|conn-tcp|conn-shm] [-limit 2m] JOB...
//
// A job is one of
//
//	add@DEPTH=N    N calls that add two 2x2 tensors of float32, DEPTH in flight
//	bytes@SIZE=N   N calls with SIZE bytes as argument, one after the other
//	receive@SIZE=N N streams, one after the other, on which the server sends 10,000 messages of SIZE bytes
//	send@SIZE=N    the same, and the client sends
//	echo@SIZE=N    N messages of SIZE bytes on one stream, each sent after the answer to the last one
//
// conn-tcp and conn-shm are Conns of tensorpipe over TCP and through shared memory.
//
// Each job prints a line of JSON. Times are in microseconds.
//
// # What is measured
//
// A call begins before its arguments are written into the request and ends when the reply has been read
// from the response. A call of receive and send is a whole stream, one of echo a round trip. All calls share one connection. Its windows are larger than any message, so that
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
	over := flags.String("over", "tcp", "kind of connection: tcp, unix, conn-tcp or conn-shm")
	limit := flags.Duration("limit", 2*time.Minute, "time limit for all jobs together")
	server := flags.String("serve", "", "run as the server and listen at this address")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if _, ok := addresses[*over]; !ok {
		return fmt.Errorf("-over %s: want tcp, unix, conn-tcp or conn-shm", *over)
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
