package store

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

// opcode is the first byte of a request of PyTorch 1.13. Numbers are little
// endian; a key or value is its length as uint64 and its bytes; some keys are
// their number as uint64 and each of them.
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

// Replies of one byte. Updates are such a byte and then the key, the value
// before and the value now.
const (
	replyReady    = 0 // to opCheck, and to opWait
	replyNotReady = 1

	replyUpdated  = 0 // on a connection with opWatch
	replyCreated  = 1
	replyDeleted  = 2
	replyWatching = 3
)

// All keys of users begin with userPrefix. initKey, which does not, is a counter
// that each client adds one to when it comes.
const (
	userPrefix = "/"
	initKey    = "init/"
)

// magic is what a client of PyTorch 2 sends behind a byte 0.
var magic = []byte{0xce, 0xf7, 0x85, 0x3c}

// request is a request with what belongs to its op.
type request struct {
	op       opcode
	key      string
	keys     []string
	expected []byte
	value    []byte // also the one desired
	delta    int64

	purse *purse // what it has cost a server so far
}

// append writes r to dst.
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

func appendText[T string | []byte](dst []byte, text T) []byte {
	return append(binary.LittleEndian.AppendUint64(dst, uint64(len(text))), text...)
}

// decoder reads what a peer sent. What it allocates grows with what has come,
// whatever lengths the peer claims.
type decoder struct {
	r       *bufio.Reader
	limits  Limits
	reserve func(bytes int) error // asked before memory is taken; may be nil
}

func newDecoder(r io.Reader, l Limits) *decoder {
	return &decoder{r: bufio.NewReader(r), limits: l}
}

// request reads one request. Its error is io.EOF only if nothing came.
func (d *decoder) request() (*request, error) {
	op, err := d.r.ReadByte()
	if err != nil {
		return nil, err
	}
	r := &request{op: opcode(op)}
	if err := d.arguments(r); err != nil {
		return nil, cut(err)
	}
	return r, nil
}

func (d *decoder) arguments(r *request) (err error) {
	switch r.op {
	case opCount:
		return nil
	case opCheck, opWait:
		r.keys, err = d.keys()
		return err
	case opSet:
		if err := d.greeting(); err != nil {
			return err
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

// greeting refuses a peer whose request of kind 0 is the greeting of PyTorch 2.
func (d *decoder) greeting() error {
	begin, err := d.r.Peek(len(magic))
	if err != nil {
		return err
	}
	if bytes.Equal(begin, magic) {
		return ErrDialect
	}
	return nil
}

// cut is the error of bytes that end in the middle.
func cut(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (d *decoder) number() (int64, error) {
	var b [8]byte
	if _, err := io.ReadFull(d.r, b[:]); err != nil {
		return 0, err
	}
	return int64(binary.LittleEndian.Uint64(b[:])), nil
}

// length reads a number that may be at most limit.
func (d *decoder) length(what string, limit int) (int, error) {
	n, err := d.number()
	if err != nil {
		return 0, err
	}
	if uint64(n) > uint64(limit) {
		return 0, fmt.Errorf("%w: a peer claims %d %s, and %d are allowed", ErrLimit, uint64(n), what, limit)
	}
	return int(n), nil
}

func (d *decoder) key() (string, error) {
	b, err := d.text("bytes of a key", d.limits.KeyBytes+len(userPrefix))
	return string(b), err
}

func (d *decoder) value() ([]byte, error) { return d.text("bytes of a value", d.limits.ValueBytes) }

// stride is how much memory is taken before its bytes have come.
const stride = 64 << 10

func (d *decoder) text(what string, limit int) ([]byte, error) {
	left, err := d.length(what, limit)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, min(left, stride))
	for left > 0 {
		n := min(left, stride)
		if err := d.take(n); err != nil {
			return nil, err
		}
		at := len(out)
		out = append(out, make([]byte, n)...)
		if _, err := io.ReadFull(d.r, out[at:]); err != nil {
			return nil, cut(err)
		}
		left -= n
	}
	return out, nil
}

// header is about what a key costs beside its bytes.
const header = 32

func (d *decoder) keys() ([]string, error) {
	n, err := d.length("keys", d.limits.Keys)
	if err != nil {
		return nil, err
	}
	var keys []string
	for range n {
		if err := d.take(header); err != nil {
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

func (d *decoder) take(n int) error {
	if d.reserve == nil {
		return nil
	}
	return d.reserve(n)
}
