package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// caller is the command call, which joins a group for one call.
type caller struct {
	groupFlags
	to      string
	timeout time.Duration
	what    string
	args    []any
	named   map[string]any
}

var callEntry = entry{
	name:    "call",
	usage:   "-to WORKER NAME [ARGUMENT | NAME=ARGUMENT]... [flags]",
	summary: "call an operator, or a function, on a worker of a group",
	help: `Joins a dynamic group for one call, prints each result in a line of its own, and
leaves. It joins as a client, which barriers of the workers do not wait for; if it is
killed, the worker that it called removes it. A name that contains :: is an operator,
any other name a function that the worker serves.

An argument is a tensor as nested lists, optionally preceded by its element type (f32,
f64, i64, i32, u8); a list of integers, such as a shape; a number; true, false or none;
a string in double quotes, as in JSON; anything else is a string as it is. Double
quotes, which must be quoted for the shell, are for strings that would otherwise mean
something else: 2 is a number, "2" is a string, and a string with = in it would be a
named argument. No name may be given twice.

  tpipe call -to worker0 aten::add 'f32:[[1,2],[3,4]]' '[[10,20],[30,40]]' alpha=2
  tpipe call -to worker0 aten::reshape '[1,2,3,4]' ints:[2,2]
  tpipe call -to worker0 example.find '"color=red"' limit=10`,
	make: func() command { return &caller{} },
}

func (c *caller) flags(fs *flag.FlagSet) {
	c.groupFlags.flags(fs, "")
	fs.StringVar(&c.to, "to", "", "`name` of the worker to call")
	fs.DurationVar(&c.timeout, "timeout", time.Minute, "longest `time` that the call may take; 0 is any")
}

// setOperands sets the name of the operator or function to call, which is the first of operands,
// and its arguments, which are the others. It also checks the flags -to and -timeout. The error is
// a *usageError.
func (c *caller) setOperands(operands []string) error {
	if c.to == "" {
		return usageErrorf("-to is missing: name a worker such as worker0")
	}
	if len(operands) == 0 {
		return usageErrorf("nothing to call: name an operator such as aten::add")
	}
	if c.timeout < 0 {
		return usageErrorf("-timeout %v: want 0 or more", c.timeout)
	}
	c.what, c.named = operands[0], map[string]any{}
	for _, text := range operands[1:] {
		if err := c.argument(text); err != nil {
			return usageErrorf("%w", err)
		}
	}
	return nil
}

// argument parses text and adds the value to c.args or, if text has the form NAME=VALUE, to
// c.named. Text that begins with a double quote is never a named argument. It returns an error if
// the name or the value is invalid, or if the name was given before.
func (c *caller) argument(text string) error {
	name, rest, named := strings.Cut(text, "=")
	if !named || strings.HasPrefix(text, `"`) {
		v, err := parseValue(text)
		c.args = append(c.args, v)
		return err
	}
	if !argumentName.MatchString(name) {
		return fmt.Errorf("%q is not an argument name: put a string that contains = in double quotes", name)
	}
	if _, twice := c.named[name]; twice {
		return fmt.Errorf("argument %s is given twice", name)
	}
	v, err := parseValue(rest)
	c.named[name] = v
	return err
}

// argumentName matches names of struct fields and usual names in their tags.
var argumentName = regexp.MustCompile(`^[\pL_][\pL\pN_.-]*$`)

func (c *caller) run(ctx context.Context, s streams) error {
	if c.name == "" {
		c.name = fmt.Sprintf("caller-%x", rand.Uint64())
	}
	config, err := c.config(s, -1, 0, false)
	if err != nil {
		return err
	}
	config.Client = true
	a, err := c.join(ctx, config)
	if err != nil {
		return interrupted(ctx, err)
	}
	args := append(c.args, agent.WithTimeout(c.timeout))
	if len(c.named) > 0 {
		args = append(args, agent.Named(c.named))
	}
	call := a.Invoke
	if strings.Contains(c.what, "::") {
		call = a.Op
	}
	results, err := call(ctx, agent.To(c.to), c.what, args...)
	for _, v := range results {
		fmt.Fprintln(s.out, format(v))
	}
	return interrupted(ctx, errors.Join(err, a.Close()))
}
