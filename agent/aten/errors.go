package aten

import (
	"fmt"
	"strings"
)

// UnknownError says that a table has no operator of that name, no such overload,
// or none with just that schema.
type UnknownError struct {
	Name string // as it was asked for
	Near string // a name of the table that looks alike, or ""
}

// Error begins as PyTorch's text does.
func (e *UnknownError) Error() string {
	text := "Cannot find matching operator for schema " + e.Name
	if e.Near != "" {
		text += "; did you mean " + e.Near + "?"
	}
	return text
}

// RegisteredError says that a table has an operator of that name already.
// [Table.Replace] takes its place.
type RegisteredError struct{ Name string }

func (e *RegisteredError) Error() string {
	return "aten: operator " + e.Name + " is registered already"
}

// SchemaError says that a text is no schema.
type SchemaError struct {
	Text string
	At   int    // the byte of Text that does not fit
	Want string // what would have
}

func (e *SchemaError) Error() string {
	return fmt.Sprintf("aten: schema %q: want %s at byte %d", e.Text, e.Want, e.At)
}

// CountError says that a call has more positional arguments than the schema takes.
type CountError struct {
	Schema *Schema
	Given  int
}

func (e *CountError) Error() string {
	return fmt.Sprintf("%s takes at most %d positional arguments, not %d", e.Schema.FullName(), e.Schema.positional(), e.Given)
}

// ArgumentError says which argument of a call does not fit its schema.
type ArgumentError struct {
	Schema *Schema
	Name   string // of the argument
	At     int    // its position, -1 for a name that the schema lacks
	Want   string // the type in words of the schema, or why it cannot be given at all
	Given  string // what was given instead, "" for nothing
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

// OverloadError says that arguments fit none of an operator's overloads.
type OverloadError struct {
	Name  string
	Given string    // the arguments, in words
	Tried []*Schema // all overloads
	Errs  []error   // for each of them why it does not fit
}

func (e *OverloadError) Error() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s: no overload takes %s:", e.Name, e.Given)
	for i, s := range e.Tried {
		fmt.Fprintf(&text, "\n  %v: %v", s, e.Errs[i])
	}
	return text.String()
}

// Unwrap returns Errs.
func (e *OverloadError) Unwrap() []error { return e.Errs }

// KernelError is what a kernel of this package returns: the arguments have the
// right types, but their sizes, dtypes or values make no sense. Err is a
// [*SizeError], a [*ValueError], a [*LimitError], an error of package tensor, or
// that of the context.
type KernelError struct {
	Operator string // with its overload
	Err      error
}

// Error has the operator at the end, so that it begins with PyTorch's text where
// there is one.
func (e *KernelError) Error() string { return fmt.Sprintf("%v (%s)", e.Err, e.Operator) }

// Unwrap returns Err.
func (e *KernelError) Unwrap() error { return e.Err }

// SizeError says that two tensors cannot be broadcast to one shape.
type SizeError struct {
	A, B int // the sizes
	Dim  int // of the result
}

// Error is PyTorch's text.
func (e *SizeError) Error() string {
	return fmt.Sprintf("The size of tensor a (%d) must match the size of tensor b (%d) at non-singleton dimension %d", e.A, e.B, e.Dim)
}

// ValueError says what is wrong with the arguments of a kernel.
type ValueError struct{ Reason string }

func (e *ValueError) Error() string { return e.Reason }

func fault(format string, args ...any) error {
	return &ValueError{Reason: fmt.Sprintf(format, args...)}
}

// LimitError says that a call would need more memory than [Limits] allow.
type LimitError struct {
	Bytes int // needed
	Limit int
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("aten: a tensor of %d bytes is beyond the limit of %d", e.Bytes, e.Limit)
}

// sizes prints a shape as PyTorch does.
func sizes(shape []int) string {
	return strings.ReplaceAll(fmt.Sprint(shape), " ", ", ")
}
