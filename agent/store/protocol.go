package store

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

// opcode is the first byte of a request in the protocol of PyTorch 1.13. Numbers are
// little endian. A key or value is its length as uint64, then its bytes; a list of
// keys is their number as uint64, then the keys.
type opcode byte

const (
	opSet           opcode = iota // key, value; no reply
	opCompareAndSet               // key, expected, desired; the value now
	opGet                         // key, which must exist; its value
	opAdd                         // key, int64; the sum as int64
	opCheck                       // keys; a byte, 0 if all exist
	opWait                        // keys; the byte 0 once all exist
	opCount                       // nothing; the number of keys as int64
	opWatch                       // key; byte 3, and later updates
	opDelete                      // key; the number of keys deleted as int64
)

// Replies of one byte. An update is such a byte, then the key, the value before the
// change and the value after it.
const (
	replyReady    = 0 // to opCheck, and to opWait
	replyNotReady = 1

	replyUpdated  = 0 // on a connection with opWatch
	replyCreated  = 1
	replyDeleted  = 2
	replyWatching = 3
)

// All keys of users begin with userPrefix. initKey, which does not, holds a counter
// to which each client adds 1 when it connects.
const (
	userPrefix = "/"
	initKey    = "init/"
)

// torch2Magic is what a client of PyTorch 2 sends after a byte 0.
var torch2Magic = []byte{0xce, 0xf7, 0x85, 0x3c}

// request is an operation with its arguments.
type request struct {
	op       opcode
	key      string
	keys     []string
	expected []byte
	value    []byte // for opCompareAndSet, the desired value
	delta    int64

	charge *charge // the memory that a server has reserved for it
}

// append appends the encoding of r to dst and returns the extended slice, which holds copies of the
// keys and values of r.
func (r *request) append(dst []byte) []byte {
	dst = append(dst, byte(r.op))
	switch r.op {
	case opCount:
		return dst
	case opCheck, opWait:
		dst = binary.LittleEndian.AppendUint64(dst, uint64(len(r.keys)))
		for _, k := range r.keys {
			dst = appendText(dst, k)
		}
		return dst
	}
	dst = appendText(dst, r.key)
	switch r.op {
	case opSet:
		dst = appendText(dst, r.value)
	case opCompareAndSet:
		dst = appendText(appendText(dst, r.expected), r.value)
	case opAdd:
		dst = binary.LittleEndian.AppendUint64(dst, uint64(r.delta))
	}
	return dst
}

// appendText appends a key or a value to dst, with its length in 8 bytes before it, and returns the
// extended slice.
func appendText[T string | []byte](dst []byte, text T) []byte {
	return append(binary.LittleEndian.AppendUint64(dst, uint64(len(text))), text...)
}

// decoder reads messages of a peer. It allocates memory in proportion to the bytes
// that have arrived, whatever lengths the peer claims.
type decoder struct {
	r       *bufio.Reader
	limits  Limits
	reserve func(bytes int) error // called before memory is allocated
}

// newDecoder returns a decoder of the messages in r, which it may read ahead of them. A key or
// value that exceeds l is an error; nothing else limits the memory that it allocates.
func newDecoder(r io.Reader, l Limits) *decoder {
	return &decoder{r: bufio.NewReader(r), limits: l, reserve: func(int) error { return nil }}
}

// request reads one request, whose keys and values belong to the caller. It returns io.EOF only if
// the input ended before the first byte of a request. Otherwise the error matches ErrProtocol,
// ErrDialect (a client of PyTorch 2) or ErrLimit, or is that of the connection or of d.reserve.
func (d *decoder) request() (*request, error) {
	op, err := d.r.ReadByte()
	if err != nil {
		return nil, err
	}
	r := &request{op: opcode(op)}
	if err := d.arguments(r); err != nil {
		return nil, unexpectedEOF(err)
	}
	return r, nil
}

// arguments reads the arguments of a request with the opcode r.op into the other fields of r. The
// error matches ErrProtocol, ErrDialect (a client of PyTorch 2) or ErrLimit, is io.EOF or
// io.ErrUnexpectedEOF if the input ended, or is that of the connection or of d.reserve. Fields of r
// may then be set in part.
func (d *decoder) arguments(r *request) (err error) {
	switch r.op {
	case opCount:
		return nil
	case opCheck, opWait:
		r.keys, err = d.keys()
		return err
	case opSet:
		head, err := d.r.Peek(len(torch2Magic))
		if err != nil {
			return err
		}
		if bytes.Equal(head, torch2Magic) {
			return ErrDialect
		}
	case opCompareAndSet, opGet, opAdd, opWatch, opDelete:
	default:
		return fmt.Errorf("%w: a request of kind %d", ErrProtocol, r.op)
	}
	if r.key, err = d.key(); err != nil {
		return err
	}
	switch r.op {
	case opSet:
		r.value, err = d.value()
	case opCompareAndSet:
		if r.expected, err = d.value(); err == nil {
			r.value, err = d.value()
		}
	case opAdd:
		r.delta, err = d.number()
	}
	return err
}

// unexpectedEOF returns io.ErrUnexpectedEOF if err is io.EOF, which then came in the middle of a
// message, and err otherwise.
func unexpectedEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// number reads a number of 8 bytes, little endian. The error is that of reading: io.EOF if the
// input ended before the number, and io.ErrUnexpectedEOF if it ended within the number.
func (d *decoder) number() (int64, error) {
	var b [8]byte
	if _, err := io.ReadFull(d.r, b[:]); err != nil {
		return 0, err
	}
	return int64(binary.LittleEndian.Uint64(b[:])), nil
}

// length reads the number of keys or bytes that follow, in 8 bytes. The error matches ErrLimit if
// the number exceeds limit; its text calls the things counted by the string what. Otherwise the
// error is that of number.
func (d *decoder) length(what string, limit int) (int, error) {
	n, err := d.number()
	if err != nil {
		return 0, err
	}
	if uint64(n) > uint64(limit) {
		return 0, fmt.Errorf("%w: the peer claims %d %s, but at most %d are allowed", ErrLimit, uint64(n), what, limit)
	}
	return int(n), nil
}

// key reads a key, as it is on the wire, with its userPrefix. The error matches ErrLimit if the key
// is too long, or is that of the connection or of d.reserve.
func (d *decoder) key() (string, error) {
	b, err := d.text("bytes of a key", d.limits.KeyBytes+len(userPrefix))
	return string(b), err
}

// value reads a value, which belongs to the caller and is not nil. The error matches ErrLimit if
// the value is too long, or is that of the connection or of d.reserve; the value is then nil.
func (d *decoder) value() ([]byte, error) { return d.text("bytes of a value", d.limits.ValueBytes) }

// allocChunk bounds the memory that is allocated before its bytes have arrived.
const allocChunk = 64 << 10

// text reads a length and then that number of bytes, which belong to the caller. It calls d.reserve
// for each allocChunk of bytes before it reads them. The error matches ErrLimit if the length
// exceeds limit; its text calls the bytes by the string what. Otherwise the error is that of the
// connection or of d.reserve.
func (d *decoder) text(what string, limit int) ([]byte, error) {
	remaining, err := d.length(what, limit)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, min(remaining, allocChunk))
	for remaining > 0 {
		n := min(remaining, allocChunk)
		if err := d.reserve(n); err != nil {
			return nil, err
		}
		at := len(out)
		out = append(out, make([]byte, n)...)
		if _, err := io.ReadFull(d.r, out[at:]); err != nil {
			return nil, unexpectedEOF(err)
		}
		remaining -= n
	}
	return out, nil
}

// keyOverhead is the approximate memory of a key in addition to its bytes.
const keyOverhead = 32

// keys reads a list of keys, each with its userPrefix. It returns nil for an empty list. The error
// matches ErrLimit if there are too many keys or one is too long, or is that of the connection or
// of d.reserve.
func (d *decoder) keys() ([]string, error) {
	n, err := d.length("keys", d.limits.MaxKeys)
	if err != nil {
		return nil, err
	}
	var keys []string
	for range n {
		if err := d.reserve(keyOverhead); err != nil {
			return nil, err
		}
		k, err := d.key()
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	return keys, nil
}
