package aten

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Kernel computes an operator. args have the number, order and types of the schema's arguments, and
// the kernel must return results of the number, order and types in the schema. It may modify the
// slice args but not the arguments in it, unless the schema marks them as modified. It may be
// called concurrently, and should return early when ctx, the context of the call, ends.
type Kernel func(ctx context.Context, args []Value) ([]Value, error)

// Operator is one overload of an operator. It must not be modified after it has been added to a
// Table.
type Operator struct {
	Schema *Schema
	Kernel Kernel

	// Tensorlike reports which values other than tensors the kernel accepts for arguments of
	// type Tensor, and which other than lists of tensors for those of type Tensor[], for example
	// the variables of package autograd. Nil stands for none.
	Tensorlike func(Value) bool

	// Short is set if the kernel never blocks and its work is bounded by the number of
	// elements of its argument tensors, so that it may run where only short handlers do.
	Short bool
}

// Run calls the kernel of op and returns its results. args must have been returned by Resolve; the
// kernel may overwrite the slice. The error is that of the kernel, which for the operators of this
// package is a *KernelError; it is also a *KernelError if the kernel does not return as many
// results as the schema has.
func (op *Operator) Run(ctx context.Context, args []Value) ([]Value, error) {
	out, err := op.Kernel(ctx, args)
	if err != nil {
		return nil, err
	}
	if want := len(op.Schema.Results); len(out) != want {
		return nil, &KernelError{Operator: op.Schema.FullName(), Err: valueErrorf("the kernel returned %d results, its schema has %d", len(out), want)}
	}
	return out, nil
}

// Table holds operators by name. The zero Table is empty and ready to use. It may be used
// concurrently as long as it is not modified.
type Table struct {
	byName map[string][]*Operator // by name without overload, in the order of registration
}

// Register adds op to the table, after the other overloads of the same name; a call that names no
// overload tries the overloads in that order. The table keeps a copy of op, which shares its
// Schema. If the table already has an operator with that name and overload, Register does not
// change the table and returns a *RegisteredError.
func (t *Table) Register(op Operator) error {
	if t.find(op.Schema) >= 0 {
		return &RegisteredError{Name: op.Schema.FullName()}
	}
	if t.byName == nil {
		t.byName = map[string][]*Operator{}
	}
	t.byName[op.Schema.Name] = append(t.byName[op.Schema.Name], &op)
	return nil
}

// Replace puts op in the place of the operator with the same name and overload. Slices that Lookup
// has returned may show op from then on: to call the previous kernel from the new one, copy the
// *Operator out of such a slice before. If the table has no operator of that name and overload,
// Replace returns an *UnknownError.
func (t *Table) Replace(op Operator) error {
	i := t.find(op.Schema)
	if i < 0 {
		return t.unknown(op.Schema.FullName())
	}
	t.byName[op.Schema.Name][i] = &op
	return nil
}

// find returns the index in t.byName[s.Name] of the operator with the overload of s, or -1 if there
// is none.
func (t *Table) find(s *Schema) int {
	return slices.IndexFunc(t.byName[s.Name], func(op *Operator) bool { return op.Schema.Overload == s.Overload })
}

// Lookup returns the operators to which a name refers: all overloads for a plain name such as
// "aten::add", and one for "aten::add.Tensor" or for a complete schema. The slice and the operators
// belong to the table and must not be modified. If there is none, Lookup returns nil and an
// *UnknownError.
func (t *Table) Lookup(name string) ([]*Operator, error) {
	if all, ok := t.byName[name]; ok {
		return all, nil
	}
	if strings.Contains(name, "(") {
		want, err := Parse(name)
		if err != nil {
			return nil, t.unknown(name)
		}
		i := t.find(want)
		if i < 0 || t.byName[want.Name][i].Schema.String() != want.String() {
			return nil, t.unknown(name)
		}
		return t.byName[want.Name][i : i+1 : i+1], nil
	}
	plain, overload, _ := strings.Cut(name, ".")
	all := t.byName[plain]
	for i, op := range all {
		if op.Schema.Overload == overload {
			return all[i : i+1 : i+1], nil
		}
	}
	return nil, t.unknown(name)
}

// maxShown bounds the part of a name, which may come from a peer, that an error repeats.
const maxShown = 256

// unknown returns an *UnknownError for a name that the table does not have, with the name that
// suggest finds. It cuts the name off after 256 bytes.
func (t *Table) unknown(name string) error {
	e := &UnknownError{Name: name, Near: t.suggest(name)}
	if len(name) > maxShown {
		e.Name = name[:maxShown] + "..."
	}
	return e
}

// suggest returns the name of an operator in the table that is similar to name: without namespaces,
// overload and arguments, one contains the other. Names that are then shorter than 2 bytes are
// similar to none. Of several it returns the longest, and of these the first in alphabetical order.
// It returns "" if there is none, or if that part of name is longer than 256 bytes.
func (t *Table) suggest(name string) string {
	requested, _, _ := strings.Cut(name, "(")
	requested, _, _ = strings.Cut(requested[strings.LastIndex(requested, ":")+1:], ".")
	if len(requested) < 2 || len(requested) > maxShown {
		return ""
	}
	best := ""
	for candidate := range t.byName {
		plain := candidate[strings.LastIndex(candidate, ":")+1:]
		if len(plain) < 2 || !strings.Contains(plain, requested) && !strings.Contains(requested, plain) {
			continue
		}
		if len(candidate) > len(best) || len(candidate) == len(best) && candidate < best {
			best = candidate
		}
	}
	return best
}

// Names returns the names of all operators, with namespace and overload, in a new sorted slice. It
// is nil for an empty table.
func (t *Table) Names() []string {
	var names []string
	for _, all := range t.byName {
		for _, op := range all {
			names = append(names, op.Schema.FullName())
		}
	}
	slices.Sort(names)
	return names
}

// Clone returns a copy of the table. Changes of one table do not affect the other. The operators
// themselves are shared.
func (t *Table) Clone() *Table {
	c := &Table{byName: make(map[string][]*Operator, len(t.byName))}
	for name, all := range t.byName {
		c.byName[name] = slices.Clone(all)
	}
	return c
}

// Resolve chooses the operator for a call: the first overload to which name refers that accepts the
// arguments. It returns the operator and the arguments for its kernel, in a new slice with one for
// each parameter: those of args by position, those of named by name, and defaults for the others.
// It keeps neither args nor named, but the values in the slice are not copied.
//
// If the table does not have the name, the error is an *UnknownError. If no overload accepts the
// arguments, it is an *OverloadError, or, if there is only one overload, a *CountError or an
// *ArgumentError.
func (t *Table) Resolve(name string, args []Value, named map[string]Value) (*Operator, []Value, error) {
	all, err := t.Lookup(name)
	if err != nil {
		return nil, nil, err
	}
	var errs []error
	for _, op := range all {
		complete, err := op.Schema.match(args, named, op.Tensorlike)
		if err == nil {
			return op, complete, nil
		}
		errs = append(errs, err)
	}
	if len(errs) == 1 {
		return nil, nil, errs[0]
	}
	e := &OverloadError{Name: name, Given: describeAll(args), Errs: errs}
	for _, op := range all {
		e.Tried = append(e.Tried, op.Schema)
	}
	return nil, nil, e
}

// Call chooses an operator for name and the arguments as Resolve does, runs it, and returns its
// results. ctx is passed to the kernel. The errors are those of Resolve and Run.
func (t *Table) Call(ctx context.Context, name string, args []Value, named map[string]Value) ([]Value, error) {
	op, complete, err := t.Resolve(name, args, named)
	if err != nil {
		return nil, err
	}
	return op.Run(ctx, complete)
}

// MustParse returns the schema that text describes, as Parse does, and panics if text is not a
// valid schema. It is meant for schemas in the source of a program.
func MustParse(text string) *Schema {
	s, err := Parse(text)
	if err != nil {
		panic(fmt.Sprintf("aten: %v", err))
	}
	return s
}
