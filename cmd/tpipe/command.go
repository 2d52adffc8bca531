package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// streams are the standard streams of a command.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// command is one run of a sub-command. Its flags are fields of the type that implements it.
type command interface {
	// flags declares the flags, with their defaults.
	flags(fs *flag.FlagSet)
	// run executes the command. ctx is cancelled when a signal arrives.
	run(ctx context.Context, s streams) error
}

// operandCommand is a command that takes arguments in addition to its flags.
type operandCommand interface {
	// setOperands is called with the arguments that are no flags, which may be none.
	setOperands(operands []string) error
}

// entry describes a sub-command.
type entry struct {
	name    string
	usage   string // arguments and flags after the name
	summary string // one line, for the list
	help    string // some lines, for its own page
	hidden  bool   // for processes that tpipe starts itself
	make    func() command
}

// entries are the sub-commands, hidden ones included, in the order of the overview.
var entries = []entry{demoEntry, probeEntry, sendEntry, recvEntry, echoEntry, pingEntry, benchEntry, workerEntry, callEntry, receiverEntry, benchChildEntry}

// lookup returns the entry of the sub-command with that name; ok is false if there is none.
func lookup(name string) (entry, bool) {
	for _, e := range entries {
		if e.name == name {
			return e, true
		}
	}
	return entry{}, false
}

// run executes the command line args, without the name of the program, prints any error, and returns
// the exit code.
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

// execute parses the flags of a command and runs it, or prints its help page. The error is a
// *usageError for an invalid command line, that of the command, or the first error of writing to its
// standard output.
func (e entry) execute(ctx context.Context, args []string, s streams) error {
	c := e.make()
	operands, err := parse(e.flagSet(c), args)
	if err == flag.ErrHelp {
		e.describe(s.out)
		return nil
	} else if err != nil {
		return usageErrorf("%w (tpipe help %s explains)", err, e.name)
	}
	if t, ok := c.(operandCommand); ok {
		if err := t.setOperands(operands); err != nil {
			return err
		}
	} else if len(operands) > 0 {
		return usageErrorf("%q is not a flag (tpipe help %s explains)", operands[0], e.name)
	}
	out := &checkedWriter{w: s.out}
	s.out = out
	return cmp.Or(c.run(ctx, s), out.err)
}

// parse sets the flags and returns the operands. Flags may be before, between and after operands; after
// -- everything is an operand. The error is that of package flag.
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

// checkedWriter records the first write error, so that a command may ignore the errors of
// single prints and still fails if its output was lost.
type checkedWriter struct {
	w   io.Writer
	err error
}

// Write implements io.Writer.
func (c *checkedWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.err = cmp.Or(c.err, err)
	return n, err
}

// flagSet returns the flags of c, which set fields of c. Parsing them prints nothing, since run reports
// the errors.
func (e entry) flagSet(c command) *flag.FlagSet {
	fs := flag.NewFlagSet(e.name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	c.flags(fs)
	return fs
}

// report prints err, the error of the command with that name, in one line on standard error, and
// returns the exit code for it. A nil err prints nothing.
func report(s streams, name string, err error) int {
	if err == nil {
		return exitDone
	}
	fmt.Fprintf(s.err, "%s: %s\n", strings.TrimSpace("tpipe "+name), oneLine(err))
	return exitCode(err)
}

// oneLine returns the text of err with its line breaks replaced.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// printJSON prints v to w, indented.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// help prints the list of commands to w, or the help page of the command that args name. The error is a
// *usageError.
func help(w io.Writer, args []string) error {
	if len(args) == 0 {
		overview(w)
		return nil
	}
	e, known := lookup(args[0])
	if !known || len(args) > 1 {
		return usageErrorf("no page for %q (tpipe help lists the commands)", strings.Join(args, " "))
	}
	e.describe(w)
	return nil
}

// overview prints the list of commands to w.
func overview(w io.Writer) {
	fmt.Fprintln(w, "tpipe moves tensors between processes.")
	fmt.Fprintln(w, "\nusage: tpipe COMMAND [flags]")
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, e := range entries {
		if !e.hidden {
			fmt.Fprintf(t, "  %s\t%s\n", e.name, e.summary)
		}
	}
	fmt.Fprintf(t, "  help\tthis list, or with the name of a command its flags\n")
	t.Flush()
	fmt.Fprintln(w, "\nExit codes: 0 done, 1 failed, 2 bad command line, 130 ended by a signal before it was done.")
}

// describe prints the help page of the command to w.
func (e entry) describe(w io.Writer) {
	fmt.Fprintf(w, "usage: tpipe %s %s\n\n%s\n\nflags:\n", e.name, e.usage, e.help)
	fs := e.flagSet(e.make())
	fs.SetOutput(w)
	fs.PrintDefaults()
}

// Exit codes.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130 // as a shell reports a program that SIGINT ended
)

// usageError is an error in the command line.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }

func (e *usageError) Unwrap() error { return e.err }

// usageErrorf returns a *usageError with that text.
func usageErrorf(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// errInterrupted is returned when a signal arrives before the command is done.
var errInterrupted = errors.New("interrupted")

// exitCode returns the exit code for err, which is not nil.
func exitCode(err error) int {
	if _, ok := errors.AsType[*usageError](err); ok {
		return exitUsage
	}
	if errors.Is(err, errInterrupted) {
		return exitInterrupted
	}
	return exitFailed
}
