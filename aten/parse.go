package aten

import (
	"math"
	"strconv"
	"strings"
)

// Bounds on parsed text. The longest schema of PyTorch has some hundred bytes.
const (
	maxSchemaLen = 4096
	maxListLen   = 64 // elements of a list that is a default value
)

// Parse returns the schema that text describes in PyTorch's grammar. The type SymInt, which PyTorch
// uses for sizes that may be symbolic, becomes int. If text is not a valid schema, has a type that
// is not a [Kind], or has more than 4096 bytes, Parse returns nil and a *SchemaError.
func Parse(text string) (*Schema, error) {
	if len(text) > maxSchemaLen {
		return nil, &SchemaError{Text: text[:64], At: maxSchemaLen, Want: "no more"}
	}
	p := &parser{text: text}
	s := &Schema{Name: p.ident(":")}
	if space, plain, ok := strings.Cut(s.Name, "::"); !ok || space == "" || plain == "" || strings.Contains(plain, ":") {
		p.fail("a name with its namespace, as aten::add,")
	}
	if p.accept(".") {
		s.Overload = p.ident("")
	}
	p.expect("(")
	p.args(s)
	p.expect(")")
	p.expect("->")
	p.results(s)
	p.skipSpace()
	if p.err == nil && p.at < len(text) {
		p.fail("the end")
	}
	if p.err != nil {
		return nil, p.err
	}
	return s, nil
}

// parser parses a schema from left to right. After an error, which err keeps, the results of its
// methods must not be used.
type parser struct {
	text string
	at   int
	err  error
}

// fail sets p.err to a *SchemaError with the current position and want, the description of the text
// that was expected there. It does nothing if p.err is set already.
func (p *parser) fail(want string) {
	if p.err == nil {
		p.err = &SchemaError{Text: p.text, At: p.at, Want: want}
	}
}

// remaining returns the part of the text that has not been parsed yet.
func (p *parser) remaining() string { return p.text[p.at:] }

// skipSpace advances the position past any spaces.
func (p *parser) skipSpace() {
	for p.at < len(p.text) && p.text[p.at] == ' ' {
		p.at++
	}
}

// accept skips spaces. If token comes next and p.err is nil, it consumes token and returns true;
// otherwise it returns false, which is no error.
func (p *parser) accept(token string) bool {
	p.skipSpace()
	if p.err != nil || !strings.HasPrefix(p.remaining(), token) {
		return false
	}
	p.at += len(token)
	return true
}

// expect skips spaces and consumes token. If token does not come next, it sets p.err.
func (p *parser) expect(token string) {
	if !p.accept(token) {
		p.fail(strconv.Quote(token))
	}
}

// ident skips spaces, and consumes and returns the longest name that comes next. A name consists of
// letters, digits, "_" and the characters of extra. If there is none, ident sets p.err and returns
// ""; if p.err is set already, it returns "".
func (p *parser) ident(extra string) string {
	p.skipSpace()
	if p.err != nil {
		return ""
	}
	start := p.at
	for p.at < len(p.text) && (letter(p.text[p.at]) || strings.IndexByte(extra, p.text[p.at]) >= 0) {
		p.at++
	}
	if p.at == start {
		p.fail("a name")
	}
	return p.text[start:p.at]
}

// letter reports whether c is an ASCII letter, a digit or "_".
func letter(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// args parses the list of arguments and appends them to s.Args. It stops at a closing parenthesis
// that comes first, or after an argument that no comma follows. If a type, a name or a default
// value is not valid, or a name occurs twice, args sets p.err.
func (p *parser) args(s *Schema) {
	p.skipSpace()
	if strings.HasPrefix(p.remaining(), ")") {
		return
	}
	keywordOnly := false
	for {
		if !keywordOnly && p.accept("*") {
			keywordOnly = true
			p.expect(",")
		}
		a := Arg{Type: p.typ(), Name: p.ident(""), KeywordOnly: keywordOnly}
		if p.accept("=") {
			a.HasDefault = true
			a.Default = p.value(a.Type)
		}
		if p.err == nil && s.find(a.Name) >= 0 {
			p.fail("another name than " + a.Name)
		}
		s.Args = append(s.Args, a)
		if !p.accept(",") {
			return
		}
	}
}

// typ parses and returns a type: the name of a Kind and its modifiers, as in "Tensor(a)", "int[2]"
// or "float?". If the text is not a type, it sets p.err; the result must then not be used.
func (p *parser) typ() Type {
	var t Type
	ident := p.ident("")
	if ident == "SymInt" {
		ident = Int.String()
	}
	for k := Tensor; k <= MemoryFormat; k++ {
		if k.String() == ident {
			t.Kind = k
		}
	}
	if t.Kind == 0 {
		p.fail("a type")
	}
	if t.Kind == Tensor && p.accept("(") {
		t.Alias = strings.TrimSpace(p.readUntil(")"))
	}
	if p.accept("[") {
		t.List = true
		if digits := p.readUntil("]"); digits != "" {
			n, err := strconv.Atoi(digits)
			if err != nil || n < 1 || n > maxListLen {
				p.fail("the size of a list")
			}
			t.Size = n
		}
	}
	t.Optional = p.accept("?")
	return t
}

// readUntil returns the text before the next occurrence of token, and consumes both. If token does
// not occur, it sets p.err, consumes nothing and returns ""; it also returns "" if p.err is set
// already.
func (p *parser) readUntil(token string) string {
	before, _, ok := strings.Cut(p.remaining(), token)
	if p.err != nil || !ok {
		p.fail(strconv.Quote(token))
		return ""
	}
	p.at += len(before) + len(token)
	return before
}

// results parses the results of an operator, one type, or a list in parentheses of types with
// optional names, and stores them in s.Results, which stays nil for an empty list. If the text is
// not valid, it sets p.err.
func (p *parser) results(s *Schema) {
	if !p.accept("(") {
		s.Results = []Result{{Type: p.typ()}}
		return
	}
	if p.accept(")") {
		return
	}
	for {
		r := Result{Type: p.typ()}
		p.skipSpace()
		if next := p.remaining(); next != "" && letter(next[0]) {
			r.Name = p.ident("")
		}
		s.Results = append(s.Results, r)
		if !p.accept(",") {
			break
		}
	}
	p.expect(")")
}

// namedConstants are the names that PyTorch's schemas use for some numbers.
var namedConstants = map[string]int64{"contiguous_format": 0, "preserve_format": 1, "Mean": 1, "strided": 0}

// value parses the default value of an argument of type t and returns it in the form that kernels
// get. If there is no value or it does not have the type t, value sets p.err; the result must then
// not be used.
func (p *parser) value(t Type) Value {
	start := p.at
	v := p.literal()
	if p.err != nil {
		return nil
	}
	v, ok := t.convert(v, nil)
	if !ok {
		p.at = start
		p.fail("a value of " + t.String())
	}
	return v
}

// literal parses a default value in the notation of a schema, and returns it as an int64, float64,
// bool, string, []int64 or nil. If there is no value, it sets p.err; the result must then not be
// used.
func (p *parser) literal() Value {
	p.skipSpace()
	remaining := p.remaining()
	switch {
	case p.accept("["):
		return p.list()
	case strings.HasPrefix(remaining, `"`) || strings.HasPrefix(remaining, "'"):
		return p.quoted()
	}
	ident := p.ident("+-.")
	switch ident {
	case "None":
		return nil
	case "True", "False":
		return ident == "True"
	}
	if n, ok := namedConstants[ident]; ok {
		return n
	}
	return p.number(ident)
}

// quoted parses a text in single or double quotes, the first of which must come next, and returns
// the text without them, as a string. If the closing quote is missing, or the text has another
// quote or a backslash in it, quoted sets p.err.
func (p *parser) quoted() Value {
	start, quote := p.at, p.remaining()[:1]
	p.at++
	text := p.readUntil(quote)
	if strings.ContainsAny(text, "\"'\\") {
		p.at = start
		p.fail("a text without quotes and backslashes in it")
	}
	return text
}

// number returns the number that ident represents as an int64 if it is an integer, and otherwise as
// a float64. If ident is not a finite number, it sets p.err; the result must then not be used.
func (p *parser) number(ident string) Value {
	if n, err := strconv.ParseInt(ident, 10, 64); err == nil {
		return n
	}
	f, err := strconv.ParseFloat(ident, 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		p.fail("a value")
	}
	return f
}

// list parses the elements of a list of ints and its closing bracket, and returns the list as a
// []int64. The opening bracket must have been consumed. If an element is not an int, or there are
// more than 64, list sets p.err and returns nil.
func (p *parser) list() Value {
	out := []int64{}
	for !p.accept("]") {
		if len(out) > 0 {
			p.expect(",")
		}
		n, ok := p.literal().(int64)
		if !ok || len(out) == maxListLen {
			p.fail("an int of a short list")
		}
		if p.err != nil {
			return nil
		}
		out = append(out, n)
	}
	return out
}
