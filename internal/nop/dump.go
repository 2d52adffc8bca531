package nop

import (
	"bytes"
	"fmt"
	"io"
	"strings"
)

const (
	dumpRow    = 12 // bytes shown per line
	dumpColumn = 48 // where meanings start, unless nesting pushes them right
	dumpDepth  = 32 // nesting shown; hostile input must not exhaust the stack
)

// Dump writes p to w in readable form, one element per line: offset, bytes and meaning, indented by
// nesting. It uses one call of w.Write.
//
//	0000  ba 01                         array of 1
//	0002    b9 02                       structure of 2
//	0004      bd 03 63 70 75            "cpu"
//	0009      00                        0
//
// Because Dump does not know the message, it cannot distinguish signed from unsigned small numbers,
// or 0 and 1 from booleans. If an element cannot be decoded or is nested too deeply, Dump prints
// the remaining bytes from there, with the reason in their first line. The error is that of w.
func Dump(w io.Writer, p []byte) error {
	var out bytes.Buffer
	s := dumper{Decoder: NewDecoder(p), bytes: p, out: &out}
	for s.remaining() > 0 {
		s.value(0)
	}
	if s.err != nil {
		s.line(s.shown, len(p), 0, s.err.Error())
	}
	_, err := w.Write(out.Bytes())
	return err
}

// dumper reads values and prints each element after reading it.
type dumper struct {
	Decoder
	bytes []byte // the whole input, also after an error
	out   *bytes.Buffer
	shown int // bytes printed so far
}

// value reads and prints one value with the values nested in it. depth is the nesting level of the
// value. At the first invalid element it returns, and s.err is the error.
func (s *dumper) value(depth int) {
	if depth > dumpDepth {
		s.Failf("nested deeper than %d", dumpDepth)
	}
	if s.remaining() == 0 {
		s.Failf("want a value, nothing left")
		return
	}
	meaning, parts := s.head(s.buf[s.off])
	if s.err != nil {
		return
	}
	s.line(s.shown, s.off, depth, meaning)
	s.shown = s.off
	for ; parts > 0 && s.err == nil; parts-- {
		s.value(depth + 1)
	}
}

// head reads the next value, whose first byte is prefix. Of a value that contains others it reads
// only the header. It returns the meaning of the bytes that it has read, and the number of values
// that the caller must then read as parts of this one. If the bytes are invalid it sets s.err.
func (s *dumper) head(prefix byte) (meaning string, parts int) {
	switch {
	case prefix <= prefixU64:
		return fmt.Sprint(s.Uint64()), 0
	case prefix <= prefixI64 || prefix >= minNegative:
		return fmt.Sprint(s.Int64()), 0
	case prefix == prefixVariant:
		return fmt.Sprintf("variant, alternative %d", s.Variant()), 1
	case prefix == prefixStruct:
		s.off++
		n := s.count(1)
		return fmt.Sprintf("structure of %d", n), n
	case prefix == prefixArray:
		n := s.Array(1)
		return arrayMeaning(n), n
	case prefix == prefixMap:
		n := s.Map(2)
		return fmt.Sprintf("map of %d", n), 2 * n
	case prefix == prefixIntegers:
		return fmt.Sprintf("64-bit integers %v", s.Uint64s(nil)), 0
	case prefix == prefixString:
		return fmt.Sprintf("%q", s.Bytes()), 0
	case s.Empty():
		return "empty", 0
	}
	s.Failf("unknown prefix %02x", prefix)
	return "", 0
}

func arrayMeaning(n int) string {
	if n == 2 {
		return "pair or array of 2"
	}
	return fmt.Sprintf("array of %d", n)
}

// line prints the bytes from offset start to end in rows, with their meaning in the first row,
// indented by depth.
func (s *dumper) line(start, end, depth int, meaning string) {
	indent := strings.Repeat("  ", depth)
	width := max(3*dumpRow, dumpColumn-len(indent))
	for at := start; at == start || at < end; at += dumpRow {
		hex := fmt.Sprintf("% x", s.bytes[at:min(at+dumpRow, end)])
		row := fmt.Sprintf("%04x  %s%-*s  %s", at, indent, width, hex, meaning)
		fmt.Fprintln(s.out, strings.TrimRight(row, " "))
		meaning = ""
	}
}
