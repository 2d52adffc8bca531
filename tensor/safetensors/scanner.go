package safetensors

import (
	"fmt"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// scanner parses the JSON of a header from at on; the text must be valid UTF-8. It supports
// objects, arrays, strings and integers from 0 on, since a header has nothing else. Package
// encoding/json would accept duplicate keys and invalid surrogates. The errors of its methods are
// *FormatError.
type scanner struct {
	text []byte
	at   int
}

// fail returns a *FormatError whose text has the present position in the header, followed by the
// text that fmt.Sprintf makes of format and args.
func (s *scanner) fail(format string, args ...any) error {
	return &FormatError{Reason: fmt.Sprintf("header at byte %d: ", s.at) + fmt.Sprintf(format, args...)}
}

// peek skips white space and returns the next byte without consuming it, or 0 at the end of the
// text.
func (s *scanner) peek() byte {
	for ; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// expect skips white space and consumes the next byte if it is c. Otherwise it consumes no byte and
// returns a *FormatError.
func (s *scanner) expect(c byte) error {
	if s.peek() != c {
		return s.fail("want %q", c)
	}
	s.at++
	return nil
}

// list parses items separated by commas between the brackets open and end. It calls item at the
// start of each item, and item must consume that item. list stops at the first error of item and
// returns it unchanged. It returns a *FormatError if a bracket or comma is missing.
func (s *scanner) list(open, end byte, item func() error) error {
	if err := s.expect(open); err != nil {
		return err
	}
	if s.peek() == end {
		return s.expect(end)
	}
	for {
		if err := item(); err != nil {
			return err
		}
		if s.peek() != ',' {
			return s.expect(end)
		}
		s.at++
	}
}

// object parses a JSON object. It calls value with each key, and value must consume the value of
// that key. object stops at the first error of value and returns it unchanged. It returns a
// *FormatError if the text is no object.
func (s *scanner) object(value func(key string) error) error {
	return s.list('{', '}', func() error {
		key, err := s.str()
		if err != nil {
			return err
		}
		if err := s.expect(':'); err != nil {
			return err
		}
		return value(key)
	})
}

// number skips white space, parses an integer from 0 up and returns it. The error is a *FormatError
// if there is none, if it has leading zeros, or if it does not fit into an int.
func (s *scanner) number() (int, error) {
	s.peek()
	start := s.at
	for s.at < len(s.text) && s.text[s.at] >= '0' && s.text[s.at] <= '9' {
		s.at++
	}
	digits := s.text[start:s.at]
	if len(digits) == 0 || len(digits) > 1 && digits[0] == '0' {
		return 0, s.fail("want an integer from 0 up")
	}
	n, err := strconv.ParseUint(string(digits), 10, 64)
	if err != nil || n > math.MaxInt {
		return 0, s.fail("the number %.40s is too large", digits)
	}
	return int(n), nil
}

// str skips white space, parses a JSON string, and returns its contents without quotes and escapes,
// in new memory. The error is a *FormatError.
func (s *scanner) str() (string, error) {
	if err := s.expect('"'); err != nil {
		return "", err
	}
	var decoded []byte
	for start := s.at; s.at < len(s.text); {
		switch c := s.text[s.at]; {
		case c == '"':
			decoded = append(decoded, s.text[start:s.at]...)
			s.at++
			return string(decoded), nil
		case c < ' ':
			return "", s.fail("a control character must be escaped")
		case c == '\\':
			decoded = append(decoded, s.text[start:s.at]...)
			r, err := s.escape()
			if err != nil {
				return "", err
			}
			decoded = utf8.AppendRune(decoded, r)
			start = s.at
		default:
			s.at++
		}
	}
	return "", s.fail("a string is not terminated")
}

// escapes maps the letter of a short escape to its character.
var escapes = map[byte]rune{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// escape parses one escape sequence, or two that form a surrogate pair, and returns the character.
// The error is a *FormatError, also for half a surrogate pair.
func (s *scanner) escape() (rune, error) {
	if s.at+1 < len(s.text) {
		if r, ok := escapes[s.text[s.at+1]]; ok {
			s.at += 2
			return r, nil
		}
	}
	r, err := s.unicode()
	if err != nil || !utf16.IsSurrogate(r) {
		return r, err
	}
	low, err := s.unicode()
	if err != nil {
		return 0, err
	}
	if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
		return 0, s.fail("half a surrogate pair")
	}
	return r, nil
}

// unicode parses an escape \u with four hexadecimal digits and returns their value, which may be
// half of a surrogate pair. The error is a *FormatError if the text has another form.
func (s *scanner) unicode() (rune, error) {
	const size = len(`\u0000`)
	if s.at+size > len(s.text) || string(s.text[s.at:s.at+2]) != `\u` {
		return 0, s.fail("bad escape")
	}
	var r rune
	for _, c := range s.text[s.at+2 : s.at+size] {
		digit, err := strconv.ParseUint(string(rune(c)), 16, 8)
		if err != nil {
			return 0, s.fail("bad escape")
		}
		r = r<<4 | rune(digit)
	}
	s.at += size
	return r, nil
}
