package main

import "flag"

// showFlags say what transfers print.
type showFlags struct{ quiet, json, verbose bool }

func (f *showFlags) flags(fs *flag.FlagSet) {
	fs.BoolVar(&f.quiet, "quiet", false, "print errors only")
	fs.BoolVar(&f.json, "json", false, "print the result as JSON, and nothing else to stdout")
	fs.BoolVar(&f.verbose, "v", false, "print also which path the files take, and why no other")
}
