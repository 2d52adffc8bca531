package aten

import (
	"fmt"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// UnknownError reports that a table has no operator of the requested name, overload or schema.
type UnknownError struct {
	Name string // as requested; after 256 bytes it is cut off and ends in "..."
	Near string // a similar name in the table, or ""
}

// Error returns a text that begins as PyTorch's text for this error does, and, if e.Near is not
// empty, suggests that name.
func (e *UnknownError) Error() string {
	text := "Cannot find matching operator for schema " + e.Name
	if e.Near != "" {
		text += "; did you mean " + e.Near + "?"
	}
	return text
}

// RegisteredError reports that a table already has an operator of that name. Use
// [Table.Replace] to replace it.
type RegisteredError struct{ Name string }

func (e *RegisteredError) Error() string {
	return "aten: operator " + e.Name + " is registered already"
}

// SchemaError reports that a text is not a valid schema.
type SchemaError struct {
	Text string // the first 64 bytes of a text that is too long
	At   int    // offset in the text at which parsing failed
	Want string // description of the expected text
}

func (e *SchemaError) Error() string {
	return fmt.Sprintf("aten: schema %q: want %s at byte %d", e.Text, e.Want, e.At)
}

// CountError reports a call with more positional arguments than the schema has.
type CountError struct {
	Schema *Schema
	Given  int
}

func (e *CountError) Error() string {
	return fmt.Sprintf("%s takes at most %d positional arguments, not %d", e.Schema.FullName(), e.Schema.positional(), e.Given)
}

// ArgumentError reports that one argument of a call does not fit the schema, is missing or does not
// exist.
type ArgumentError struct {
	Schema *Schema
	Name   string // of the argument; an unknown name is cut off after 256 bytes
	At     int    // its position, or -1 if the schema has no such name
	Want   string // the type in the schema's notation, "one value" if given twice, "" if unknown
	Given  string // description of the value, "given twice", or "" if missing or unknown
}

func (e *ArgumentError) Error() string {
	where := fmt.Sprintf("%s: argument %q", e.Schema.FullName(), e.Name)
	switch {
	case e.At < 0:
		return where + " does not exist"
	case e.Given == "":
		return fmt.Sprintf("%s (position %d) is missing; want %s", where, e.At, e.Want)
	}
	return fmt.Sprintf("%s (position %d) is %s; want %s", where, e.At, e.Given, e.Want)
}

// OverloadError reports that the arguments of a call fit none of an operator's overloads.
type OverloadError struct {
	Name  string
	Given string    // description of the arguments
	Tried []*Schema // all overloads
	Errs  []error   // the reason for each of them
}

// Error returns one line with the operator, the given arguments, and each overload with the reason
// for which it does not fit. A reason does not repeat the name of the overload.
func (e *OverloadError) Error() string {
	reasons := make([]string, len(e.Tried))
	for i, s := range e.Tried {
		reason := strings.TrimPrefix(e.Errs[i].Error(), s.FullName())
		reasons[i] = fmt.Sprintf("%v: %s", s, strings.TrimLeft(reason, ": "))
	}
	return fmt.Sprintf("%s: no overload takes %s: %s", e.Name, e.Given, strings.Join(reasons, "; "))
}

// Unwrap returns e.Errs itself, which has the reason for each overload that did not fit.
func (e *OverloadError) Unwrap() []error { return e.Errs }

// KernelError is the error of a kernel of this package for arguments of the right types but
// with invalid sizes, dtypes or values. Err is an [*ops.SizeError], an [*ops.ValueError], an
// [*ops.LimitError], an error of package tensor, or the error of the context.
type KernelError struct {
	Operator string // with its overload
	Err      error
}

// Error returns the text of e.Err, followed by the operator's name in parentheses. If the text of
// e.Err is PyTorch's, the result begins as PyTorch's does.
func (e *KernelError) Error() string { return fmt.Sprintf("%v (%s)", e.Err, e.Operator) }

// Unwrap returns e.Err, the reason for which the kernel failed.
func (e *KernelError) Unwrap() error { return e.Err }

// valueErrorf returns an *ops.ValueError whose reason is formatted as fmt.Sprintf does.
func valueErrorf(format string, args ...any) error {
	return &ops.ValueError{Reason: fmt.Sprintf(format, args...)}
}
