// Command tpipe shows and measures what pipes do on this machine and between
// machines. tpipe help lists its commands.
//
// Results go to stdout, everything else to stderr; an error is one line. The
// exit code is 0 when the command succeeded, 1 when it
// failed, 2 when the command line cannot be understood, and 130 when a signal
// ended it before it was done.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal asks the command to end, the second one ends it.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], streams{in: os.Stdin, out: os.Stdout, err: os.Stderr}))
}
