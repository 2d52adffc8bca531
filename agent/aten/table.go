package aten

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Kernel computes an operator. The arguments are as many as the schema has, in
// its order and of its types, and the slice belongs to the kernel; the results
// are as many and of the types as the schema says. A kernel changes no argument
// that its schema does not mark as changed, and may be called from several
// goroutines at once. The context is that of the call: whoever waits for the
// results gives up when it ends.
type Kernel func(ctx context.Context, args []Value) ([]Value, error)

// Operator is one overload of an operator.
type Operator struct {
	Schema *Schema
	Kernel Kernel

	// Tensorlike says which values the kernel takes, besides tensors, where the
	// schema says Tensor: one for variables of an autograd, say. Nil is none.
	// Lists of tensors have tensors only.
	Tensorlike func(Value) bool

	// Short says that the kernel waits for nothing, and that the work it does is
	// bounded by the numbers of elements of the tensors that it gets, none of which is
	// 0: it may run where small work should be done at once.
	Short bool
}

// Run computes with arguments that Resolve returned. The error is that of the kernel,
// for the kernels of this package a *KernelError.
func (op *Operator) Run(ctx context.Context, args []Value) ([]Value, error) {
	out, err := op.Kernel(ctx, args)
	if err != nil {
		return nil, err
	}
	if want := len(op.Schema.Results); len(out) != want {
		return nil, &KernelError{Operator: op.Schema.FullName(), Err: fault("the kernel returned %d results, its schema says %d", len(out), want)}
	}
	return out, nil
}

// Table finds operators by name. The zero Table is empty.
type Table struct {
	byName map[string][]*Operator // by the name without overload, in the order registered
}

// Register adds an operator. The error is a *RegisteredError if there is one of
// that name and overload. What is registered first is tried first where a call
// leaves the overload open.
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

// Replace puts an operator in the place of the one with that name and overload.
// Get that from Lookup first to call its kernel from the new one. The error is an
// *UnknownError if there is none.
func (t *Table) Replace(op Operator) error {
	i := t.find(op.Schema)
	if i < 0 {
		return t.unknown(op.Schema.FullName())
	}
	t.byName[op.Schema.Name][i] = &op
	return nil
}

// find is the place of an operator among its overloads, or -1.
func (t *Table) find(s *Schema) int {
	return slices.IndexFunc(t.byName[s.Name], func(op *Operator) bool { return op.Schema.Overload == s.Overload })
}

// Lookup finds the operators that a call of that name may mean: all overloads of
// "aten::add", one for "aten::add.Tensor" or for a schema as a whole. They and
// the slice must not be changed. The error is an *UnknownError.
func (t *Table) Lookup(name string) ([]*Operator, error) {
	if all, ok := t.byName[name]; ok {
		return all, nil
	}
	if strings.Contains(name, "(") {
		return t.bySchema(name)
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

// bySchema finds the operator that has just that schema.
func (t *Table) bySchema(text string) ([]*Operator, error) {
	want, err := Parse(text)
	if err != nil {
		return nil, t.unknown(text)
	}
	i := t.find(want)
	if i < 0 || t.byName[want.Name][i].Schema.String() != want.String() {
		return nil, t.unknown(text)
	}
	return t.byName[want.Name][i : i+1 : i+1], nil
}

// shown bounds what an error repeats of a name that a peer may have sent.
const shown = 256

func (t *Table) unknown(name string) error {
	e := &UnknownError{Name: name, Near: t.near(name)}
	if len(name) > shown {
		e.Name = name[:shown] + "..."
	}
	return e
}

// near is a name of the table that the one asked for contains, or the other way
// round, their namespaces aside; among several the longest, then the first.
func (t *Table) near(name string) string {
	asked, _, _ := strings.Cut(name, "(")
	asked, _, _ = strings.Cut(asked[strings.LastIndex(asked, ":")+1:], ".")
	if len(asked) < 2 || len(asked) > shown {
		return ""
	}
	best := ""
	for candidate := range t.byName {
		plain := candidate[strings.LastIndex(candidate, ":")+1:]
		if len(plain) < 2 || !strings.Contains(plain, asked) && !strings.Contains(asked, plain) {
			continue
		}
		if len(candidate) > len(best) || len(candidate) == len(best) && candidate < best {
			best = candidate
		}
	}
	return best
}

// Names lists the operators with their overloads, sorted.
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

// Clone makes a table of the same operators that can be changed.
func (t *Table) Clone() *Table {
	c := &Table{byName: make(map[string][]*Operator, len(t.byName))}
	for name, all := range t.byName {
		c.byName[name] = slices.Clone(all)
	}
	return c
}

// Resolve finds the operator for a call and the arguments that its kernel is to
// get: args by position, then named, then defaults. The first overload that takes
// them is chosen. The error is an *UnknownError; where there is one overload only
// what does not fit, a *CountError or an *ArgumentError; else an *OverloadError.
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

// Call resolves and computes. The error is that of Resolve or of the kernel: for
// the kernels of this package a *KernelError.
func (t *Table) Call(ctx context.Context, name string, args []Value, named map[string]Value) ([]Value, error) {
	op, complete, err := t.Resolve(name, args, named)
	if err != nil {
		return nil, err
	}
	return op.Run(ctx, complete)
}

// MustParse is Parse for schemas that a program consists of; it panics on an error.
func MustParse(text string) *Schema {
	s, err := Parse(text)
	if err != nil {
		panic(fmt.Sprintf("aten: %v", err))
	}
	return s
}
