package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// ping is the command ping, which measures round trips to an echo. The fields are its flags.
type ping struct {
	path     pathFlags
	tls      tlsFlags
	to       string
	count    int
	size     byteSize
	payloads int
	tensors  int
	named    bool
	check    bool
	seed     uint64
	limit    byteSize
	timeout  time.Duration
	verbose  bool
	json     bool
}

var pingEntry = entry{
	name:    "ping",
	usage:   "-to HOST:PORT [flags]",
	summary: "measure round trips to an echo, or check its answers",
	help: `Sends messages to an echo (tpipe echo, or the one of a C++ program), one after
the other, and prints the path of the pipe and the times of the round trips. The rate
counts each byte once, though it travels there and back. A few warm-up trips are not
counted.

With -check each message has a random shape: up to -payloads payloads and
-tensors tensors (4 of each by default) of up to -size bytes, some of them empty, with
random metadata. Every byte of the echo is compared; the first difference ends the
command with exit code 1.

SIGINT ends the command and prints the results so far.`,
	make: func() command { return &ping{size: 64 << 10, payloads: unset, tensors: unset, limit: defaultLimit} },
}

func (p *ping) run(ctx context.Context, s streams) error {
	p.complete()
	p.to = withScheme(uvName, p.to)
	if err := p.validate(); err != nil {
		return err
	}
	tls, err := p.tls.dial()
	if err != nil {
		return err
	}
	opts, err := p.path.options(tls...)
	if err != nil {
		return err
	}
	opts.Name = "tpipe ping"
	opts.HandshakeTimeout = p.timeout
	c, err := pipe.New(opts)
	if err != nil {
		return err
	}
	defer c.Close()
	conn, err := c.Dial(ctx, p.to)
	if err != nil {
		return interrupted(ctx, flagError("to", err))
	}
	return p.measure(ctx, conn, s)
}

// measure makes the round trips over conn and prints the result, even if some of them fail. It
// closes conn or, after an error, aborts it. It returns the error of roundTrips, or errInterrupted
// in its place if a signal has ended ctx, joined with the error of printing JSON.
func (p *ping) measure(ctx context.Context, conn *pipe.Pipe, s streams) error {
	r := newPingReport(p, conn)
	if !p.json {
		fmt.Fprintf(s.out, "pipe to %s %s\n", r.URL, pathText(r.Plan, r.TLS))
		printPlan(s.out, r.Plan, p.verbose)
	}
	err := p.roundTrips(ctx, conn, r, newProgress(s.err, p.count))
	if err != nil {
		conn.Abort(err)
		err = interrupted(ctx, err)
	} else {
		conn.Close() // the result does not depend on how the echo closes
	}
	r.finish(err)
	if p.json {
		return errors.Join(err, printJSON(s.out, r))
	}
	r.print(s.out)
	return err
}

// roundTrips makes p.count round trips over conn and adds each to r. Unless echoes are compared, it
// first makes up to ten warm-up trips, which are not added. It passes the number of trips added to
// show, and clears show at the end. If a trip fails or a message cannot be generated, it stops and
// returns the error.
func (p *ping) roundTrips(ctx context.Context, conn *pipe.Pipe, r *pingReport, show *progress) error {
	defer show.clear()
	pings := newPinger(ctx, conn, p.timeout, p.check)
	defer pings.stop()
	load := newGenerator(p)
	x, err := load.next()
	if err != nil {
		return err
	}
	warmUp := min(p.count/10, 10) // not counted: both ends touch their memory for the first time
	if p.check {
		warmUp = 0
	}
	for i := -warmUp; i < p.count; i++ {
		took, err := pings.roundTrip(x)
		if err != nil {
			return fmt.Errorf("round trip %d of %d: %w", max(i, 0)+1, p.count, err)
		}
		if i >= 0 {
			r.add(x, took)
			show.at(i + 1)
		}
		if p.check { // otherwise all messages are equal
			x.release()
			if x, err = load.next(); err != nil {
				return err
			}
		}
	}
	return nil
}

// interrupted returns errInterrupted if err is not nil and ctx has ended, which happens when a
// signal arrives. Otherwise it returns err, which may be nil.
func interrupted(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return errInterrupted
	}
	return err
}

// unset is the value of flags whose default depends on -check.
const unset = -1

// setParts returns a function for flag.FlagSet.Func. The function parses a number of payloads or
// tensors and stores it in *n. It returns an error if the text is no number from 0 to maxParts.
func setParts(n *int) func(string) error {
	return func(text string) error {
		got, err := strconv.Atoi(text)
		if err != nil || got < 0 || got > maxParts {
			return fmt.Errorf("want 0 to %d", maxParts)
		}
		*n = got
		return nil
	}
}

func (p *ping) flags(fs *flag.FlagSet) {
	fs.StringVar(&p.to, "to", "", "`address` of the echo, HOST:PORT or a URL")
	fs.IntVar(&p.count, "count", 1000, "`number` of round trips")
	fs.Var(&p.size, "size", "`size` of each payload and tensor, as in 4096, 64KiB, 16MiB, 1GiB")
	fs.Func("payloads", "`number` of payloads in a message (default 0, or up to 4 with -check)", setParts(&p.payloads))
	fs.Func("tensors", "`number` of tensors in a message (default 1, or up to 4 with -check)", setParts(&p.tensors))
	fs.BoolVar(&p.named, "named", false, "name the target device of tensors, which saves a round trip")
	fs.BoolVar(&p.check, "check", false, "send random messages and compare their echoes")
	fs.Uint64Var(&p.seed, "seed", 0, "`seed` of the random messages; 0 draws one, which -check prints")
	fs.Var(&p.limit, "limit", "largest message to send, a `size`")
	fs.DurationVar(&p.timeout, "timeout", 30*time.Second, "longest `time` to wait for the connection, and for each message")
	verboseFlag(fs, &p.verbose)
	fs.BoolVar(&p.json, "json", false, "print the result as JSON")
	p.tls.dialFlags(fs)
	p.path.flags(fs)
}

// complete sets -payloads and -tensors, whose defaults depend on -check, if the user has not set
// them. If -seed is 0, it sets a random seed.
func (p *ping) complete() {
	for _, n := range []struct {
		flag         *int
		plain, check int
	}{{&p.payloads, 0, 4}, {&p.tensors, 1, 4}} {
		switch {
		case *n.flag != unset:
		case p.check:
			*n.flag = n.check
		default:
			*n.flag = n.plain
		}
	}
	if p.seed == 0 {
		p.seed = 1 + rand.Uint64N(1<<53-1) // JSON readers that use float64 do not round it
	}
}

// Bounds of flags, which keep the memory of a ping itself small.
const (
	maxCount = 10_000_000
	maxParts = 65536
)

// validate returns nil if the flags are valid, and a *usageError if one is missing or out of range.
// It is called after complete.
func (p *ping) validate() error {
	switch {
	case p.to == "":
		return usageErrorf("-to is missing: give the address of a tpipe echo such as 127.0.0.1:7000")
	case p.count < 1 || p.count > maxCount:
		return usageErrorf("-count %d: want 1 to %d", p.count, maxCount)
	case p.timeout <= 0:
		return usageErrorf("-timeout %s: want more than 0", p.timeout)
	}
	if parts := p.payloads + p.tensors; parts > 0 && p.size > p.limit/byteSize(parts) {
		return usageErrorf("-size %s: %s of that size would exceed the -limit of %s for a message; raise -limit here and at the echo",
			p.size, plural(parts, "part"), p.limit)
	}
	return nil
}
