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
var entries = []entry{trainEntry, demoEntry, probeEntry, sendEntry, recvEntry, echoEntry, pingEntry, benchEntry, workerEntry, callEntry, psEntry, versionEntry, completionEntry, receiverEntry, stageEntry, benchChildEntry}

// lookup returns the entry of the sub-command with that name and true. If there is none it returns
// the zero entry and false. It also finds hidden sub-commands.
func lookup(name string) (entry, bool) {
	for _, e := range entries {
		if e.name == name {
			return e, true
		}
	}
	return entry{}, false
}

// run executes the sub-command that args names, where args is the command line without the name of
// the program. It prints an error to s.err and returns the exit code. Without args it prints the
// list of commands to s.err and returns exitUsage.
func run(ctx context.Context, args []string, s streams) int {
	if len(args) == 0 {
		overview(s.err)
		return exitUsage
	}
	name, args := args[0], args[1:]
	switch name {
	case "help", "-h", "-help", "--help":
		return report(s, "help", help(s.out, args))
	case "-version", "--version":
		name = versionEntry.name
	}
	e, known := lookup(name)
	if !known {
		return report(s, "", usageErrorf("unknown command %q (tpipe help lists them)", name))
	}
	return report(s, name, e.execute(ctx, args, s))
}

// execute runs the command e with the flags and operands in args, or prints its help page if args
// asks for it. The error is a *usageError if args is invalid, that of the command, or, if the
// command succeeds, the first error that it had when it wrote to s.out.
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

// parse sets the flags of fs that are in args, and returns the operands: the arguments that are no
// flags. Flags may be before, between and after operands; after -- everything is an operand. The
// error is that of package flag, such as flag.ErrHelp.
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

// Write writes p to the underlying writer and returns its results. It stores the first error in
// c.err.
func (c *checkedWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.err = cmp.Or(c.err, err)
	return n, err
}

// flagSet returns a new flag set with the flags of c. Parsing it sets fields of c. Parsing prints
// nothing and returns errors, which run prints.
func (e entry) flagSet(c command) *flag.FlagSet {
	fs := flag.NewFlagSet(e.name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	c.flags(fs)
	return fs
}

// report prints err, the error of the command name, as one line on standard error, with the flags for
// the settings that it asks for, and returns the exit code for it. If err is nil it prints nothing and returns exitDone.
func report(s streams, name string, err error) int {
	if err == nil {
		return exitDone
	}
	fmt.Fprintf(s.err, "%s: %s%s\n", strings.TrimSpace("tpipe "+name), oneLine(err), flagHint(err))
	return exitCode(err)
}

// oneLine returns the text of err with "; " in place of each line break. err must not be nil.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// printJSON writes v to w as indented JSON, followed by a line break.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// help prints the list of commands to w if args is empty, and otherwise the help page of the
// command args[0]. It prints nothing and returns a *usageError if there is no such command or args
// has more than one element.
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

// overview prints the usage of the program, the commands that are not hidden, the transports and
// channels, and the exit codes to w. It ignores errors of writing.
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
	fmt.Fprintf(t, "\nTransports, of which a pipe takes one, and channels, which move its large tensors:\n\n")
	all := catalog(torchLanes)
	for _, name := range append(transportNames(all), channelNames(all)...) {
		fmt.Fprintf(t, "  %s\t%s\n", name, pathSummaries[name])
	}
	t.Flush()
	fmt.Fprintln(w, "\nExit codes: 0 done, 1 failed, 2 bad command line, 130 ended by a signal before it was done.")
}

// describe prints the help page of the command e to w: its usage, its text and, if it has any, its
// flags with their defaults. It ignores errors of writing.
func (e entry) describe(w io.Writer) {
	fmt.Fprintf(w, "usage: %s\n\n%s\n", strings.TrimSpace("tpipe "+e.name+" "+e.usage), e.help)
	fs := e.flagSet(e.make())
	var flags strings.Builder
	fs.SetOutput(&flags)
	fs.PrintDefaults()
	if flags.Len() > 0 {
		fmt.Fprintf(w, "\nflags:\n%s", flags.String())
	}
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

// usageErrorf returns a *usageError whose text is that of fmt.Errorf. It wraps the operands of %w.
func usageErrorf(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// errInterrupted is returned when a signal arrives before the command is done.
var errInterrupted = errors.New("interrupted")

// exitCode returns the exit code for err, which must not be nil: exitUsage for a *usageError,
// exitInterrupted for errInterrupted, and otherwise exitFailed. Wrapped errors count too.
func exitCode(err error) int {
	if _, ok := errors.AsType[*usageError](err); ok {
		return exitUsage
	}
	if errors.Is(err, errInterrupted) {
		return exitInterrupted
	}
	return exitFailed
}
