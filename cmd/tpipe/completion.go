package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/cmd/tpipe/internal/train"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// completion is the command completion, which prints a script that completes command lines.
type completion struct {
	shell string
}

var completionEntry = entry{
	name:    "completion",
	usage:   "bash|zsh|fish",
	summary: "print a script with which a shell completes commands and flags",
	help: `Prints a script for a shell, with which the tab key completes commands, flags, and the
values of flags that have few. For the running shell:

  source <(tpipe completion bash)
  source <(tpipe completion zsh)
  tpipe completion fish | source

Write it to a file for every shell: ~/.local/share/bash-completion/completions/tpipe,
_tpipe in a folder of zsh's $fpath, ~/.config/fish/completions/tpipe.fish.`,
	make: func() command { return &completion{} },
}

func (c *completion) flags(*flag.FlagSet) {}

// setOperands stores the name of the shell, the only one of operands. The error is a *usageError.
func (c *completion) setOperands(operands []string) error {
	if _, known := completionScripts[strings.Join(operands, " ")]; !known {
		return usageErrorf("name one shell: %s", strings.Join(completionShells(), ", "))
	}
	c.shell = operands[0]
	return nil
}

func (c *completion) run(_ context.Context, s streams) error {
	completionScripts[c.shell](s.out, completable())
	return nil
}

// completionScripts has, for each shell, the function that writes the script for commands to w. The
// functions ignore errors of writing.
var completionScripts = map[string]func(w io.Writer, commands []completedCommand){
	"bash": bashCompletion,
	"zsh":  zshCompletion,
	"fish": fishCompletion,
}

// completionShells returns the names of the shells, sorted.
func completionShells() []string { return slices.Sorted(maps.Keys(completionScripts)) }

// completedCommand is a command as the scripts complete it.
type completedCommand struct {
	name, summary string
	flags         []completedFlag
	operands      []string // the possible ones; empty if they are files or names
}

// completedFlag is a flag as the scripts complete it.
type completedFlag struct {
	name, usage string
	takesValue  bool
	values      []string // the possible ones; empty if they are many
}

// completable returns the commands that are not hidden, and help, with their flags.
func completable() []completedCommand {
	help := completedCommand{name: "help", summary: "list the commands, or explain one"}
	var commands []completedCommand
	for _, e := range entries {
		if e.hidden {
			continue
		}
		help.operands = append(help.operands, e.name)
		c := completedCommand{name: e.name, summary: e.summary}
		if e.name == completionEntry.name {
			c.operands = completionShells()
		}
		e.flagSet(e.make()).VisitAll(func(f *flag.Flag) {
			_, usage := flag.UnquoteUsage(f)
			boolean, ok := f.Value.(interface{ IsBoolFlag() bool })
			values, of := flagValues[e.name+" "+f.Name]
			if !of {
				values = flagValues[f.Name]
			}
			c.flags = append(c.flags, completedFlag{f.Name, usage, !ok || !boolean.IsBoolFlag(), values})
		})
		commands = append(commands, c)
	}
	return append(commands, help)
}

// flagValues has the possible values of flags that have few, in all commands that have the flag, or in
// the one whose name is before that of the flag.
var flagValues = map[string][]string{
	"transport": transportNames(catalog(torchLanes)),
	"channel":   channelNames(catalog(torchLanes)),
	"dialect":   {string(pipe.DialectAuto), string(pipe.DialectCompatible), string(pipe.DialectNative)},
	"compress":  {"s2", "zstd"},

	"train transport": trainTransports,
	"train name":      train.Names,
}

// bashCompletion writes the script for bash. Where it has no proposal bash proposes files.
func bashCompletion(w io.Writer, commands []completedCommand) {
	fmt.Fprint(w, `_tpipe() {
	local command=${COMP_WORDS[1]} current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} words=
	COMPREPLY=()
	if [ "$COMP_CWORD" -eq 1 ]; then
		words="`+joinNames(commands)+`"
	else
		case "$command $previous" in
`)
	for _, c := range commands {
		for _, f := range c.flags {
			if len(f.values) > 0 {
				fmt.Fprintf(w, "\t\t\"%s -%s\") words=\"%s\" ;;\n", c.name, f.name, strings.Join(f.values, " "))
			} else if f.takesValue {
				fmt.Fprintf(w, "\t\t\"%s -%s\") return ;;\n", c.name, f.name)
			}
		}
		words := slices.Clone(c.operands)
		for _, f := range c.flags {
			words = append(words, "-"+f.name)
		}
		if len(c.operands) > 0 {
			fmt.Fprintf(w, "\t\t\"%s \"*) words=\"%s\" ;;\n", c.name, strings.Join(words, " "))
		} else if len(words) > 0 {
			fmt.Fprintf(w, "\t\t\"%s \"*) case $current in -*) words=\"%s\" ;; esac ;;\n", c.name, strings.Join(words, " "))
		}
	}
	fmt.Fprint(w, `		esac
	fi
	COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _tpipe tpipe
`)
}

func joinNames(commands []completedCommand) string {
	var names []string
	for _, c := range commands {
		names = append(names, c.name)
	}
	return strings.Join(names, " ")
}

// zshCompletion writes the script for zsh, which may be a file in $fpath or be sourced.
func zshCompletion(w io.Writer, commands []completedCommand) {
	fmt.Fprint(w, "#compdef tpipe\n\n_tpipe() {\n\tlocal -a commands\n\tcommands=(\n")
	for _, c := range commands {
		fmt.Fprintf(w, "\t\t%s\n", quoted(c.name+":"+c.summary))
	}
	fmt.Fprint(w, `	)
	if (( CURRENT == 2 )); then
		_describe command commands
		return
	fi
	local context state line
	shift words
	(( CURRENT-- ))
	case $words[1] in
`)
	for _, c := range commands {
		fmt.Fprintf(w, "\t%s) _arguments", c.name)
		for _, f := range c.flags {
			// Brackets end the description, and a colon begins the value.
			text := "-" + f.name + "[" + strings.NewReplacer("[", `\[`, "]", `\]`, ":", `\:`).Replace(f.usage) + "]"
			switch {
			case len(f.values) > 0:
				text += ":" + f.name + ":(" + strings.Join(f.values, " ") + ")"
			case f.takesValue:
				text += ":" + f.name + ":_files"
			}
			fmt.Fprintf(w, " \\\n\t\t%s", quoted(text))
		}
		operands := "_files"
		if len(c.operands) > 0 {
			operands = "(" + strings.Join(c.operands, " ") + ")"
		}
		fmt.Fprintf(w, " \\\n\t\t%s ;;\n", quoted("*::argument:"+operands))
	}
	fmt.Fprint(w, `	esac
}

if [[ $funcstack[1] == _tpipe ]]; then
	_tpipe "$@"
else
	compdef _tpipe tpipe
fi
`)
}

// fishCompletion writes the script for fish.
func fishCompletion(w io.Writer, commands []completedCommand) {
	for _, c := range commands {
		fmt.Fprintf(w, "complete -c tpipe -n __fish_use_subcommand -f -a %s -d %s\n", c.name, quoted(c.summary))
	}
	for _, c := range commands {
		line := "complete -c tpipe -n " + quoted("__fish_seen_subcommand_from "+c.name)
		if len(c.operands) > 0 {
			fmt.Fprintf(w, "%s -f -a %s\n", line, quoted(strings.Join(c.operands, " ")))
		}
		for _, f := range c.flags {
			value := ""
			if len(f.values) > 0 {
				value = " -x -a " + quoted(strings.Join(f.values, " "))
			} else if f.takesValue {
				value = " -r"
			}
			fmt.Fprintf(w, "%s -o %s%s -d %s\n", line, f.name, value, quoted(f.usage))
		}
	}
}

// quoted returns text as one word of a shell, in single quotes. The result is valid in bash, zsh
// and fish if text has no backslash.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
