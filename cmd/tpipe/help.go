package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// help prints the list of commands, or the page of one.
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

func overview(w io.Writer) {
	fmt.Fprintln(w, "tpipe moves tensors between processes.")
	fmt.Fprintln(w, "\nusage: tpipe COMMAND [flags]")
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, e := range table() {
		if !e.hidden {
			fmt.Fprintf(t, "  %s\t%s\n", e.name, e.summary)
		}
	}
	fmt.Fprintf(t, "  help\tthis list, or with the name of a command its flags\n")
	t.Flush()
	fmt.Fprintln(w, "\nExit codes: 0 done, 1 failed, 2 bad command line, 130 ended by a signal before it was done.")
}

// describe prints the page of one command.
func (e entry) describe(w io.Writer) {
	fmt.Fprintf(w, "usage: tpipe %s %s\n\n%s\n\nflags:\n", e.name, e.usage, e.help)
	fs := e.flagSet(e.make())
	fs.SetOutput(w)
	fs.PrintDefaults()
}
