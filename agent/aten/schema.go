package aten

import (
	"strconv"
	"strings"
)

// Schema says what an operator takes and what it returns. Make one with [Parse],
// and do not change it.
type Schema struct {
	Name     string // with its namespace, as in "aten::add"
	Overload string // "" for an operator's plain one
	Args     []Arg
	Results  []Result
}

// Arg is a parameter of an operator.
type Arg struct {
	Name        string
	Type        Type
	HasDefault  bool
	Default     Value // if HasDefault
	KeywordOnly bool  // it is given by its name only
}

// Result is what an operator returns; the name may be "".
type Result struct {
	Name string
	Type Type
}

// Kind is the type of a value, or of the elements of a list.
type Kind uint8

// The kinds. ScalarType is an int64 with PyTorch's number of a dtype, or a string
// as package tensor prints it ("f32"); Layout and MemoryFormat are int64 with
// PyTorch's numbers; Device is a string.
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

// kinds is indexed by Kind.
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

// Type is the type of a parameter or a result.
type Type struct {
	Kind     Kind
	Alias    string // as in Tensor(a), "" for none
	List     bool
	Size     int  // a list of that size may be given as a single element; 0 for none
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

// FullName is the name with the overload, as in "aten::add.Tensor".
func (s *Schema) FullName() string {
	if s.Overload == "" {
		return s.Name
	}
	return s.Name + "." + s.Overload
}

// String prints the text that [Parse] reads, in one form.
func (s *Schema) String() string {
	var text strings.Builder
	text.WriteString(s.FullName() + "(")
	only := false
	for i, a := range s.Args {
		if i > 0 {
			text.WriteString(", ")
		}
		if a.KeywordOnly && !only {
			text.WriteString("*, ")
			only = true
		}
		text.WriteString(a.String())
	}
	text.WriteString(") -> ")
	text.WriteString(resultsText(s.Results))
	return text.String()
}

func (a Arg) String() string {
	text := a.Type.String() + " " + a.Name
	if a.HasDefault {
		text += "=" + literal(a.Default)
	}
	return text
}

func resultsText(results []Result) string {
	var words []string
	for _, r := range results {
		words = append(words, strings.TrimSuffix(r.Type.String()+" "+r.Name, " "))
	}
	if len(words) == 1 && results[0].Name == "" {
		return words[0]
	}
	return "(" + strings.Join(words, ", ") + ")"
}

// literal prints a default value.
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
		return floatText(v)
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

// floatText is the shortest text that is read as the same float, and not as an int.
func floatText(v float64) string {
	text := strconv.FormatFloat(v, 'g', -1, 64)
	if !strings.ContainsAny(text, ".e") {
		text += ".0"
	}
	return text
}

// positional is the number of arguments that need no name.
func (s *Schema) positional() int {
	for i, a := range s.Args {
		if a.KeywordOnly {
			return i
		}
	}
	return len(s.Args)
}

// find is the position of an argument, -1 for a name that is none.
func (s *Schema) find(name string) int {
	for i, a := range s.Args {
		if a.Name == name {
			return i
		}
	}
	return -1
}
