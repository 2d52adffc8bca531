package native

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
)

// Stream identifies the stream from which bytes were captured, and thereby their format.
type Stream int

const (
	// MessageStream is the first stream of a session.
	MessageStream Stream = iota
	// ControlStream is the second one.
	ControlStream
	// BulkStream is the bulk connection.
	BulkStream
)

const (
	dumpRow  = 8  // bytes shown per line
	dumpRows = 4  // lines shown per field
	dumpText = 32 // bytes of a text shown as text
)

// dumpLimits are the limits for dumps: nothing is allocated from these sizes.
var dumpLimits = Limits{Descriptor: 1 << 30, Inline: 1 << 30, Kind: maxKind}

// Dump writes p to w in readable form, one field per line: offset, bytes, name, meaning.
//
//	0000  08 00 00 00              length                8
//	0004  06                       kind                  CANCEL
//	0005  00                       flags                 none
//	0006  00 00                    reserved              0
//	0008  0a 00 00 00 00 00 00 00  message               10
//
// p starts at a frame or a chunk of stream s. If a frame or chunk is truncated, or the decoder
// rejects it, a line with a remark follows. Dump returns only the error of w.
func Dump(w io.Writer, s Stream, p []byte) error {
	d := dumper{p: p, end: len(p)}
	for d.off < len(p) {
		switch s {
		case MessageStream:
			d.frame(func(kind byte) string {
				if kind == KindMessage {
					return messageFrame
				}
				return "unknown"
			}, d.message, checkMessage)
		case ControlStream:
			d.frame(func(kind byte) string { return ControlKind(kind).String() }, d.control, checkControl)
		default:
			d.chunk()
		}
	}
	_, err := w.Write(d.out.Bytes())
	return err
}

// dumper prints the fields of p in order to out. Fields that are missing at the end are not printed.
type dumper struct {
	p    []byte
	off  int  // of the next field
	end  int  // of the body, or of p if no body has begun
	kind byte // of the frame
	out  bytes.Buffer
}

// frame prints the frame at d.off, header, body and checksum, and advances d.off past it. It calls
// kind for the name of the frame's kind, and body to print the body. If the frame is truncated, it
// prints a remark. Otherwise it calls check with the whole frame, and prints the error of check if
// there is one.
func (d *dumper) frame(kind func(byte) string, body func(), check func(frame []byte) error) {
	start := d.off
	length := d.number(4, "length", decimal)
	d.kind = byte(d.number(1, "kind", func(v uint64) string { return kind(byte(v)) }))
	flags := d.number(1, "flags", flagNames("checksum"))
	d.number(2, "reserved", decimal)
	d.end = d.off + int(min(length, uint64(len(d.p)-d.off)))
	body()
	d.bytes(uint64(d.end-d.off), "unknown")
	missing := length - uint64(max(d.off-start-HeaderSize, 0))
	d.end = len(d.p)
	if missing == 0 && flags&flagCRC != 0 {
		d.number(SumSize, "crc", hexadecimal)
	}
	if d.off-start < HeaderSize || missing > 0 {
		d.note("cut")
		return
	}
	if err := check(d.p[start:d.off]); err != nil {
		d.note(err.Error())
	}
}

// number prints the next n bytes, at most 8, as a little-endian number v with its name and with
// meaning(v), advances d.off past them, and returns v. If fewer than n bytes are left, it prints
// those as bytes and returns 0.
func (d *dumper) number(n int, name string, meaning func(uint64) string) uint64 {
	if n > d.end-d.off {
		d.bytes(uint64(d.end-d.off), name)
		return 0
	}
	var wide [8]byte
	copy(wide[:], d.p[d.off:][:n])
	v := binary.LittleEndian.Uint64(wide[:])
	d.line(n, name, meaning(v))
	return v
}

// bytes prints the next n bytes, or as many as the body has left, as a field with this name, and
// advances d.off past them. It prints nothing if there are none.
func (d *dumper) bytes(n uint64, name string) {
	if n = min(n, uint64(d.end-d.off)); n == 0 {
		return
	}
	text := d.p[d.off:][:n]
	if len(text) > dumpText {
		d.line(len(text), name, fmt.Sprintf("%d bytes", n))
		return
	}
	d.line(len(text), name, fmt.Sprintf("%q", text))
}

// line prints the next n bytes in rows, with name and meaning in the first row, and advances d.off
// by n. After dumpRows rows it prints only the number of the remaining bytes. The dump must have n
// more bytes.
func (d *dumper) line(n int, name, meaning string) {
	p := d.p[d.off:][:n]
	for at := 0; at < n; at += dumpRow {
		if at == dumpRow*dumpRows {
			fmt.Fprintf(&d.out, "      .. and %d more\n", n-at)
			break
		}
		row := fmt.Sprintf("%04x  %-*s  %-20s  %s", d.off+at, 3*dumpRow-1, fmt.Sprintf("% x", p[at:min(at+dumpRow, n)]), name, meaning)
		fmt.Fprintln(&d.out, strings.TrimRight(row, " "))
		name, meaning = "", ""
	}
	d.off += n
}

// note prints text as a remark, on a line of its own. It does not advance d.off.
func (d *dumper) note(text string) { fmt.Fprintf(&d.out, "      !! %s\n", text) }

func decimal(v uint64) string     { return fmt.Sprint(v) }
func hexadecimal(v uint64) string { return fmt.Sprintf("%08x", v) }

// flagNames returns a function that returns the names of the bits that are set in a number, joined
// by commas, or "none". names[i] is the name of bit i; bits without a name are shown in
// hexadecimal. The function keeps names.
func flagNames(names ...string) func(uint64) string {
	return func(v uint64) string {
		var set []string
		for i, name := range names {
			if v&(1<<i) != 0 {
				set = append(set, name)
			}
		}
		if unknown := v >> len(names) << len(names); unknown != 0 {
			set = append(set, fmt.Sprintf("unknown %#x", unknown))
		}
		if len(set) == 0 {
			return "none"
		}
		return strings.Join(set, ", ")
	}
}
