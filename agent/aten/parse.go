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

// Parse returns the schema that text describes in PyTorch's grammar. SymInt, which PyTorch uses for
// sizes that may be symbolic, is parsed as int. The error is a *SchemaError.
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

// parser parses a schema from left to right. After an error, which err keeps, its methods consume
// nothing.
type parser struct {
	text string
	at   int
	err  error
}

// fail records that want was expected at the current position, unless there is an error already.
func (p *parser) fail(want string) {
	if p.err == nil {
		p.err = &SchemaError{Text: p.text, At: p.at, Want: want}
	}
}

// remaining returns the text that has not been consumed.
func (p *parser) remaining() string { return p.text[p.at:] }

// skipSpace consumes spaces.
func (p *parser) skipSpace() {
	for p.at < len(p.text) && p.text[p.at] == ' ' {
		p.at++
	}
}

// accept skips spaces, and consumes token if it comes next. It reports whether it did.
func (p *parser) accept(token string) bool {
	p.skipSpace()
	if p.err != nil || !strings.HasPrefix(p.remaining(), token) {
		return false
	}
	p.at += len(token)
	return true
}

// expect consumes token, and fails if it does not come next.
func (p *parser) expect(token string) {
	if !p.accept(token) {
		p.fail(strconv.Quote(token))
	}
}

// ident consumes and returns a name of letters, digits, "_" and the characters of extra. It fails if
// there is none.
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

// letter reports whether c may be part of a name.
func letter(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// args parses the arguments up to the closing parenthesis, which it leaves, and appends them to s.Args.
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

// typ parses a type with its modifiers.
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

// readUntil consumes the text up to and including the next token, and returns the text before the
// token. It fails if there is no token.
func (p *parser) readUntil(token string) string {
	before, _, ok := strings.Cut(p.remaining(), token)
	if p.err != nil || !ok {
		p.fail(strconv.Quote(token))
		return ""
	}
	p.at += len(before) + len(token)
	return before
}

// results parses a type, or a list of types and names in parentheses, into s.Results.
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

// value parses a default value and returns it as a kernel gets it. It fails if the value does not have
// the type t.
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

// literal parses a value in the notation of a schema: an int64, float64, bool, string, []int64 or nil.
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

// quoted parses a text in quotes of either kind, which must come next, and returns it as a string.
// Escapes are not supported.
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

// number returns the number that ident represents. It fails if ident is none.
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

// list parses the elements of a list of ints, whose opening bracket has been consumed, and the closing
// bracket.
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
