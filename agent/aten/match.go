package aten

import "github.com/tensorpipe-go/tensorpipe/tensor"

// match puts the arguments of a call into the order of the schema, in the form
// that kernels see, with defaults filled in. The slices given are not changed.
// like, if not nil, says which other values are tensors.
func (s *Schema) match(args []Value, named map[string]Value, like func(Value) bool) ([]Value, error) {
	if len(args) > s.positional() {
		return nil, &CountError{Schema: s, Given: len(args)}
	}
	out := make([]Value, len(s.Args))
	used := 0
	for i := range s.Args {
		a := &s.Args[i]
		v, given := Value(nil), i < len(args)
		if given {
			v = args[i]
		}
		if byName, ok := named[a.Name]; ok {
			if given {
				return nil, &ArgumentError{Schema: s, Name: a.Name, At: i, Want: "one value", Given: "given twice"}
			}
			v, given = byName, true
			used++
		}
		var err error
		if out[i], err = s.argument(i, v, given, like); err != nil {
			return nil, err
		}
	}
	if used < len(named) {
		return nil, s.stranger(named)
	}
	return out, nil
}

// argument is one argument as the kernel sees it.
func (s *Schema) argument(i int, v Value, given bool, like func(Value) bool) (Value, error) {
	a := &s.Args[i]
	switch {
	case !given && a.HasDefault:
		return a.Default, nil
	case !given:
		return nil, &ArgumentError{Schema: s, Name: a.Name, At: i, Want: a.Type.String()}
	}
	out, ok := a.Type.convert(v, like)
	if !ok {
		return nil, &ArgumentError{Schema: s, Name: a.Name, At: i, Want: a.Type.String(), Given: describe(v)}
	}
	return out, nil
}

// stranger is the error for a name that the schema lacks: of several the first
// in order, so that the same call gets the same error.
func (s *Schema) stranger(named map[string]Value) error {
	found, name := false, ""
	for n := range named {
		if s.find(n) < 0 && (!found || n < name) {
			found, name = true, n
		}
	}
	return &ArgumentError{Schema: s, Name: name[:min(len(name), shown)], At: -1}
}

// convert gives a value the form that kernels see; ok is false if it is not of
// the type.
func (t Type) convert(v Value, like func(Value) bool) (out Value, ok bool) {
	v = normal(v)
	if v == nil {
		return nil, t.Optional
	}
	if t.List {
		return t.list(v)
	}
	switch v := v.(type) {
	case *tensor.Tensor, *tensor.Sparse:
		return v, t.Kind == Tensor
	case int64:
		if t.Kind == Float {
			return float64(v), true
		}
		return v, t.takesInt()
	case float64:
		return v, t.Kind == Float || t.Kind == Scalar
	case bool:
		return v, t.Kind == Bool || t.Kind == Scalar
	case string:
		return v, t.Kind == Str || t.Kind == Device || t.Kind == ScalarType
	}
	return v, t.Kind == Tensor && like != nil && like(v)
}

func (t Type) takesInt() bool {
	switch t.Kind {
	case Int, Scalar, ScalarType, Layout, MemoryFormat:
		return true
	}
	return false
}

// list is convert for lists, of which there are two kinds.
func (t Type) list(v Value) (out Value, ok bool) {
	switch v := v.(type) {
	case int64:
		if t.Kind != Int || t.Size == 0 {
			return nil, false
		}
		return repeat(v, t.Size), true
	case []int64:
		return v, t.Kind == Int
	case []*tensor.Tensor:
		for _, element := range v {
			if element == nil {
				return nil, false
			}
		}
		return v, t.Kind == Tensor
	}
	return nil, false
}

func repeat(n int64, times int) []int64 {
	out := make([]int64, times)
	for i := range out {
		out[i] = n
	}
	return out
}
