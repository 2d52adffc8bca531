package safetensors

import (
	"fmt"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// scanner reads the JSON of a header, which is valid UTF-8. It knows objects,
// arrays, strings and the integers from 0 up, for a header has nothing else.
// Package encoding/json would let duplicate keys and broken surrogates pass.
type scanner struct {
	text []byte
	at   int
}

func (s *scanner) fail(format string, args ...any) error {
	return &FormatError{Reason: fmt.Sprintf("header at byte %d: ", s.at) + fmt.Sprintf(format, args...)}
}

// peek skips white space and returns the next byte, 0 at the end.
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

// expect takes a byte that must come next.
func (s *scanner) expect(c byte) error {
	if s.peek() != c {
		return s.fail("want %q", c)
	}
	s.at++
	return nil
}

// list takes items between brackets, separated by commas.
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

// object takes an object; value is called with each key and takes its value.
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

// number takes an integer from 0 up.
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

// str takes a string.
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
	return "", s.fail("a string has no end")
}

// escapes maps the letter of a short escape to what it stands for.
var escapes = map[byte]rune{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// escape takes a backslash and what belongs to it.
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

// unicode takes an escape of four hexadecimal digits.
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
