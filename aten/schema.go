package aten

import (
	"slices"
	"strconv"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Schema describes the arguments and results of an operator. It is made by [Parse] and must not
// be modified.
type Schema struct {
	Name     string // with its namespace, as in "aten::add"
	Overload string // "" for the overload without a name
	Args     []Arg
	Results  []Result
}

// Arg is a parameter of an operator.
type Arg struct {
	Name        string
	Type        Type
	HasDefault  bool
	Default     Value // if HasDefault
	KeywordOnly bool  // cannot be given by position
}

// Result describes a result of an operator; its name may be "".
type Result struct {
	Name string
	Type Type
}

// Kind is the type of an argument or a result, or of the elements of a list.
type Kind uint8

// Values of kind ScalarType are an int64 with PyTorch's number of a dtype, or its name in
// package tensor ("f32"). Those of Layout and MemoryFormat are an int64 with PyTorch's number;
// those of Device are strings.
const (
	Tensor Kind = iota + 1
	Scalar      // int64, float64 or bool
	Int
	Float // int64 becomes float64
	Bool
	Str
	ScalarType
	Layout
	Device
	MemoryFormat
)

// kinds has the names of the kinds.
var kinds = [...]string{
	Tensor: "Tensor", Scalar: "Scalar", Int: "int", Float: "float", Bool: "bool", Str: "str",
	ScalarType: "ScalarType", Layout: "Layout", Device: "Device", MemoryFormat: "MemoryFormat",
}

func (k Kind) String() string {
	if k == 0 || int(k) >= len(kinds) {
		return "none"
	}
	return kinds[k]
}

// Type is the type of a parameter or a result: a Kind with the modifiers that PyTorch's grammar
// has.
type Type struct {
	Kind     Kind
	Alias    string // as in Tensor(a), "" for none
	List     bool
	Size     int  // if not 0, a single element stands for a list of that size
	Optional bool // nil is a value of the type
}

func (t Type) String() string {
	text := t.Kind.String()
	if t.Alias != "" {
		text += "(" + t.Alias + ")"
	}
	switch {
	case t.List && t.Size > 0:
		text += "[" + strconv.Itoa(t.Size) + "]"
	case t.List:
		text += "[]"
	}
	if t.Optional {
		text += "?"
	}
	return text
}

// FullName returns the name with namespace and overload, as in "aten::add.Tensor", or just
// "aten::add" if the overload has no name.
func (s *Schema) FullName() string {
	if s.Overload == "" {
		return s.Name
	}
	return s.Name + "." + s.Overload
}

// String returns the schema as text in a canonical form. If the text has at most 4096 bytes,
// [Parse] accepts it and returns an equal schema.
func (s *Schema) String() string {
	var text strings.Builder
	text.WriteString(s.FullName() + "(")
	keywordOnly := false
	for i, a := range s.Args {
		if i > 0 {
			text.WriteString(", ")
		}
		if a.KeywordOnly && !keywordOnly {
			text.WriteString("*, ")
			keywordOnly = true
		}
		text.WriteString(a.String())
	}
	text.WriteString(") -> ")
	var results []string
	for _, r := range s.Results {
		results = append(results, strings.TrimSuffix(r.Type.String()+" "+r.Name, " "))
	}
	if len(results) == 1 && s.Results[0].Name == "" {
		text.WriteString(results[0])
	} else {
		text.WriteString("(" + strings.Join(results, ", ") + ")")
	}
	return text.String()
}

func (a Arg) String() string {
	text := a.Type.String() + " " + a.Name
	if a.HasDefault {
		text += "=" + literal(a.Default)
	}
	return text
}

// literal returns the default value v in the notation of a schema, for example "True", "1.0" or
// "[0, 1]". For nil, and for types that a default value cannot have, it returns "None".
func literal(v Value) string {
	switch v := v.(type) {
	case bool:
		if v {
			return "True"
		}
		return "False"
	case int64:
		return strconv.FormatInt(v, 10)
	case float64:
		text := strconv.FormatFloat(v, 'g', -1, 64) // the shortest text that parses to the same float
		if !strings.ContainsAny(text, ".e") {
			text += ".0" // not an int
		}
		return text
	case string:
		return `"` + v + `"`
	case []int64:
		var words []string
		for _, n := range v {
			words = append(words, strconv.FormatInt(n, 10))
		}
		return "[" + strings.Join(words, ", ") + "]"
	default:
		return "None"
	}
}

// positional returns the number of parameters that a caller may give by position. In s.Args they
// come before those that can only be given by name.
func (s *Schema) positional() int {
	for i, a := range s.Args {
		if a.KeywordOnly {
			return i
		}
	}
	return len(s.Args)
}

// find returns the index in s.Args of the parameter with that name, or -1 if there is none.
func (s *Schema) find(name string) int {
	for i, a := range s.Args {
		if a.Name == name {
			return i
		}
	}
	return -1
}

// match returns the arguments of a call in a new slice, one for each parameter of the schema: those
// of args by position, those of named by name, and defaults for the others. Each is converted to
// the form that kernels get. tensorlike reports whether a value of a type unknown to this package
// is accepted as a tensor; nil accepts none. The error is a *CountError for too many positional
// arguments, or an *ArgumentError for an argument that is missing, given twice, of the wrong type
// or unknown.
func (s *Schema) match(args []Value, named map[string]Value, tensorlike func(Value) bool) ([]Value, error) {
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
		if !given {
			if !a.HasDefault {
				return nil, &ArgumentError{Schema: s, Name: a.Name, At: i, Want: a.Type.String()}
			}
			out[i] = a.Default
			continue
		}
		var ok bool
		if out[i], ok = a.Type.convert(v, tensorlike); !ok {
			return nil, &ArgumentError{Schema: s, Name: a.Name, At: i, Want: a.Type.String(), Given: describe(v)}
		}
	}
	if used < len(named) {
		// Of several unknown names the first in alphabetical order, so that the error is deterministic.
		found, name := false, ""
		for n := range named {
			if s.find(n) < 0 && (!found || n < name) {
				found, name = true, n
			}
		}
		return nil, &ArgumentError{Schema: s, Name: name[:min(len(name), maxShown)], At: -1}
	}
	return out, nil
}

// convert returns v in the form that a kernel gets for a parameter of type t, and true. If v does
// not have that type, ok is false and out must not be used. A nil v has the type if t is optional.
// tensorlike reports whether a value of a type unknown to this package is accepted as a tensor, or as a
// list of tensors; nil accepts none. Slices and tensors are not copied, except an []int, which becomes an []int64.
func (t Type) convert(v Value, tensorlike func(Value) bool) (out Value, ok bool) {
	v = normalize(v)
	if v == nil {
		return nil, t.Optional
	}
	if t.List {
		if out, ok = t.list(v); ok {
			return out, true
		}
		return v, t.Kind == Tensor && tensorlike != nil && tensorlike(v)
	}
	switch v := v.(type) {
	case *tensor.Tensor, *tensor.Sparse:
		return v, t.Kind == Tensor
	case int64:
		if t.Kind == Float {
			return float64(v), true
		}
		return v, slices.Contains([]Kind{Int, Scalar, ScalarType, Layout, MemoryFormat}, t.Kind)
	case float64:
		return v, t.Kind == Float || t.Kind == Scalar
	case bool:
		return v, t.Kind == Bool || t.Kind == Scalar
	case string:
		return v, t.Kind == Str || t.Kind == Device || t.Kind == ScalarType
	}
	return v, t.Kind == Tensor && tensorlike != nil && tensorlike(v)
}

// list returns v in the form that a kernel gets for a parameter of the list type t, and true. If v
// does not have that type, ok is false. v must have been normalized. A single int64 becomes a list
// of t.Size such elements if t is a list of ints with a fixed size. A list is returned itself; a
// list of tensors must not contain nil.
func (t Type) list(v Value) (out Value, ok bool) {
	switch v := v.(type) {
	case int64:
		if t.Kind != Int || t.Size == 0 {
			return nil, false
		}
		return slices.Repeat([]int64{v}, t.Size), true
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
