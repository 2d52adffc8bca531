package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"
)

// unset is the value of flags whose default depends on -check.
const unset = -1

// setParts reads a number of payloads or tensors. It has no default worth
// printing.
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
	fs.StringVar(&p.to, "to", "", "`url` of the echo")
	fs.IntVar(&p.count, "count", 1000, "`number` of round trips")
	fs.Var(&p.size, "size", "`size` of each payload and tensor, as in 4096, 64KiB, 16MiB, 1GiB")
	fs.Func("payloads", "`number` of payloads in a message (default 0, or up to 4 with -check)", setParts(&p.payloads))
	fs.Func("tensors", "`number` of tensors in a message (default 1, or up to 4 with -check)", setParts(&p.tensors))
	fs.BoolVar(&p.named, "named", false, "name the device on which tensors shall arrive, which saves them a round trip")
	fs.BoolVar(&p.check, "check", false, "send random messages and compare what comes back")
	fs.Uint64Var(&p.seed, "seed", 0, "`seed` of the random messages; 0 draws one, which -check prints")
	fs.Var(&p.limit, "limit", "largest message to send, a `size`")
	fs.DurationVar(&p.timeout, "timeout", 30*time.Second, "longest `time` to wait for the connection, and for each message")
	verboseFlag(fs, &p.verbose)
	fs.BoolVar(&p.json, "json", false, "print the result as JSON")
	p.tls.dialFlags(fs)
	p.path.flags(fs)
}

// complete fills in the defaults that depend on other flags.
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
		p.seed = drawSeed()
	}
}

// drawSeed returns a number that JSON readers do not round, as those do that
// hold all numbers as float64.
func drawSeed() uint64 { return 1 + rand.Uint64N(1<<53-1) }

// What a ping may ask for, so that its own books stay small.
const (
	maxCount = 10_000_000
	maxParts = 65536
)

func (p *ping) validate() error {
	switch {
	case p.to == "":
		return usageErrorf("-to is missing: give a url such as uv://127.0.0.1:7000")
	case p.count < 1 || p.count > maxCount:
		return usageErrorf("-count %d: want 1 to %d", p.count, maxCount)
	case p.timeout <= 0:
		return usageErrorf("-timeout %s: want more than 0", p.timeout)
	}
	if parts := p.payloads + p.tensors; parts > 0 && p.size > p.limit/byteSize(parts) {
		return usageErrorf("-size %s: %s of that size would exceed the -limit of %s for a message; if that is meant, raise -limit here and at the echo",
			p.size, plural(parts, "part"), p.limit)
	}
	return nil
}
