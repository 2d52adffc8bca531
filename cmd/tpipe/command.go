package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"strings"
)

// streams are where a command reads and writes.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// command is one run of a sub-command: its flags are the fields of the type
// that implements it.
type command interface {
	// flags declares the flags, with their defaults.
	flags(fs *flag.FlagSet)
	// run does the work. ctx ends when the user wants it to stop.
	run(ctx context.Context, s streams) error
}

// taker is a command whose command line has more than flags.
type taker interface {
	// take gets what is no flag, nothing if there is none.
	take(operands []string) error
}

// entry describes a sub-command.
type entry struct {
	name    string
	usage   string // what follows the name on the command line
	summary string // one line, for the list
	help    string // some lines, for its own page
	hidden  bool   // for processes that tpipe starts itself
	make    func() command
}

// table lists the sub-commands.
func table() []entry {
	return []entry{demoEntry(), probeEntry(), sendEntry(), recvEntry(), echoEntry(), pingEntry(), benchEntry(), workerEntry(), callEntry(), receiverEntry(), benchChildEntry()}
}

func lookup(name string) (entry, bool) {
	for _, e := range table() {
		if e.name == name {
			return e, true
		}
	}
	return entry{}, false
}

// run executes a command line and returns the exit code.
func run(ctx context.Context, args []string, s streams) int {
	if len(args) == 0 {
		overview(s.err)
		return exitUsage
	}
	name, args := args[0], args[1:]
	switch name {
	case "help", "-h", "-help", "--help":
		return report(s, "help", help(s.out, args))
	}
	e, known := lookup(name)
	if !known {
		return report(s, "", usageErrorf("unknown command %q (tpipe help lists them)", name))
	}
	return report(s, name, e.execute(ctx, args, s))
}

// execute reads the flags of a command and runs it.
func (e entry) execute(ctx context.Context, args []string, s streams) error {
	c := e.make()
	operands, err := parse(e.flagSet(c), args)
	if err == flag.ErrHelp {
		e.describe(s.out)
		return nil
	} else if err != nil {
		return usageErrorf("%w (tpipe help %s explains)", err, e.name)
	}
	if t, ok := c.(taker); ok {
		if err := t.take(operands); err != nil {
			return err
		}
	} else if len(operands) > 0 {
		return usageErrorf("%q is not a flag (tpipe help %s explains)", operands[0], e.name)
	}
	out := &checkedWriter{w: s.out}
	s.out = out
	return cmp.Or(c.run(ctx, s), out.err)
}

// parse sets flags, which may stand before, behind and among the operands; what
// is behind -- is no flag.
func parse(fs *flag.FlagSet, args []string) (operands []string, err error) {
	for {
		if err := fs.Parse(args); err != nil {
			return nil, err
		}
		rest := fs.Args()
		if len(rest) == 0 {
			return operands, nil
		}
		if used := len(args) - len(rest); used > 0 && args[used-1] == "--" {
			return append(operands, rest...), nil
		}
		operands, args = append(operands, rest[0]), rest[1:]
	}
}

// checkedWriter remembers the first error, so that commands may print without
// looking and still fail when nobody got their result.
type checkedWriter struct {
	w   io.Writer
	err error
}

func (c *checkedWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.err = cmp.Or(c.err, err)
	return n, err
}

// flagSet prints nothing itself: errors are reported in one place.
func (e entry) flagSet(c command) *flag.FlagSet {
	fs := flag.NewFlagSet(e.name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	c.flags(fs)
	return fs
}

// report prints an error, in one line, and returns the exit code for it.
func report(s streams, name string, err error) int {
	if err == nil {
		return exitDone
	}
	fmt.Fprintf(s.err, "%s: %s\n", strings.TrimSpace("tpipe "+name), oneLine(err))
	return exitCode(err)
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
