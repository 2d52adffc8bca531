package aten

import (
	"math"
	"strconv"
	"strings"
)

// Bounds on the texts that are read: the longest schema of PyTorch has some
// hundred bytes.
const (
	longestSchema = 4096
	mostElements  = 64 // of a list that is a default
)

// Parse reads a schema. SymInt, which PyTorch uses where a size may be unknown, is
// read as int. The error is a *SchemaError.
func Parse(text string) (*Schema, error) {
	if len(text) > longestSchema {
		return nil, &SchemaError{Text: text[:64], At: longestSchema, Want: "no more"}
	}
	p := &parser{text: text}
	s := &Schema{}
	p.name(s)
	p.want("(")
	p.args(s)
	p.want(")")
	p.want("->")
	p.results(s)
	p.space()
	if p.err == nil && p.at < len(text) {
		p.fail("the end")
	}
	if p.err != nil {
		return nil, p.err
	}
	return s, nil
}

// parser reads a schema from front to back. After an error it reads nothing more.
type parser struct {
	text string
	at   int
	err  error
}

func (p *parser) fail(want string) {
	if p.err == nil {
		p.err = &SchemaError{Text: p.text, At: p.at, Want: want}
	}
}

func (p *parser) rest() string { return p.text[p.at:] }

func (p *parser) space() {
	for p.at < len(p.text) && p.text[p.at] == ' ' {
		p.at++
	}
}

// take skips a token if it comes next.
func (p *parser) take(token string) bool {
	p.space()
	if p.err != nil || !strings.HasPrefix(p.rest(), token) {
		return false
	}
	p.at += len(token)
	return true
}

func (p *parser) want(token string) {
	if !p.take(token) {
		p.fail(strconv.Quote(token))
	}
}

// word reads a name; extra lists what it may contain beside letters, digits and "_".
func (p *parser) word(extra string) string {
	p.space()
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

func letter(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func (p *parser) name(s *Schema) {
	s.Name = p.word(":")
	if space, plain, ok := strings.Cut(s.Name, "::"); !ok || space == "" || plain == "" || strings.Contains(plain, ":") {
		p.fail("a name with its namespace, as aten::add,")
	}
	if p.take(".") {
		s.Overload = p.word("")
	}
}

func (p *parser) args(s *Schema) {
	p.space()
	if strings.HasPrefix(p.rest(), ")") {
		return
	}
	only := false
	for {
		if !only && p.take("*") {
			only = true
			p.want(",")
		}
		a := p.arg()
		a.KeywordOnly = only
		if p.err == nil && s.find(a.Name) >= 0 {
			p.fail("another name than " + a.Name)
		}
		s.Args = append(s.Args, a)
		if !p.take(",") {
			return
		}
	}
}

func (p *parser) arg() Arg {
	a := Arg{Type: p.typ(), Name: p.word("")}
	if p.take("=") {
		a.HasDefault = true
		a.Default = p.value(a.Type)
	}
	return a
}

func (p *parser) typ() Type {
	var t Type
	word := p.word("")
	if word == "SymInt" {
		word = Int.String()
	}
	for k := Tensor; k <= MemoryFormat; k++ {
		if k.String() == word {
			t.Kind = k
		}
	}
	if t.Kind == 0 {
		p.fail("a type")
	}
	if t.Kind == Tensor && p.take("(") {
		t.Alias = strings.TrimSpace(p.until(")"))
	}
	if p.take("[") {
		t.List = true
		if digits := p.until("]"); digits != "" {
			t.Size = p.size(digits)
		}
	}
	t.Optional = p.take("?")
	return t
}

// until reads what comes before the token, and skips that.
func (p *parser) until(token string) string {
	before, _, ok := strings.Cut(p.rest(), token)
	if p.err != nil || !ok {
		p.fail(strconv.Quote(token))
		return ""
	}
	p.at += len(before) + len(token)
	return before
}

func (p *parser) size(digits string) int {
	n, err := strconv.Atoi(digits)
	if err != nil || n < 1 || n > mostElements {
		p.fail("the size of a list")
	}
	return n
}

func (p *parser) results(s *Schema) {
	if !p.take("(") {
		s.Results = []Result{{Type: p.typ()}}
		return
	}
	if p.take(")") {
		return
	}
	for {
		r := Result{Type: p.typ()}
		p.space()
		if next := p.rest(); next != "" && letter(next[0]) {
			r.Name = p.word("")
		}
		s.Results = append(s.Results, r)
		if !p.take(",") {
			break
		}
	}
	p.want(")")
}

// named is what PyTorch's schemas write for some numbers.
var named = map[string]int64{"contiguous_format": 0, "preserve_format": 1, "Mean": 1, "strided": 0}

// value reads a default and fails unless it is of that type.
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

func (p *parser) literal() Value {
	p.space()
	rest := p.rest()
	switch {
	case p.take("["):
		return p.list()
	case strings.HasPrefix(rest, `"`) || strings.HasPrefix(rest, "'"):
		return p.quoted()
	}
	word := p.word("+-.")
	switch word {
	case "None":
		return nil
	case "True", "False":
		return word == "True"
	}
	if n, ok := named[word]; ok {
		return n
	}
	return p.number(word)
}

// quoted reads a text in quotes of either kind, in which nothing is escaped.
func (p *parser) quoted() Value {
	start, quote := p.at, p.rest()[:1]
	p.at++
	text := p.until(quote)
	if strings.ContainsAny(text, "\"'\\") {
		p.at = start
		p.fail("a text without quotes and backslashes in it")
	}
	return text
}

func (p *parser) number(word string) Value {
	if n, err := strconv.ParseInt(word, 10, 64); err == nil {
		return n
	}
	f, err := strconv.ParseFloat(word, 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		p.fail("a value")
	}
	return f
}

func (p *parser) list() Value {
	out := []int64{}
	for !p.take("]") {
		if len(out) > 0 {
			p.want(",")
		}
		n, ok := p.literal().(int64)
		if !ok || len(out) == mostElements {
			p.fail("an int of a short list")
		}
		if p.err != nil {
			return nil
		}
		out = append(out, n)
	}
	return out
}
