package safetensors

import (
	"encoding/binary"
	"errors"
	"io"
	"unicode/utf8"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// metadataKey is the key that is no tensor but a map of strings.
const metadataKey = "__metadata__"

// Info describes one tensor of a file.
type Info struct {
	Name  string
	DType string // as the file spells it, as in "F32"
	Shape []int

	begin, end int // bytes behind the header
	format     format
}

// ByteSize is the number of bytes of the tensor in the file.
func (i Info) ByteSize() int { return i.end - i.begin }

// Type is the dtype of the tensor in memory. The error is a *DTypeError if
// package tensor lacks it.
func (i Info) Type() (tensor.DType, error) {
	if !i.format.dtype.Valid() {
		return 0, &DTypeError{Tensor: i.Name, DType: i.DType, Reason: "is not supported; convert the tensor to another one"}
	}
	return i.format.dtype, nil
}

// header is what a file says about its tensors.
type header struct {
	infos    []Info // in the order of the data
	index    map[string]int
	metadata map[string]string
	size     int // bytes of all tensors
}

// readHeader reads the length and the header; it holds at most twice the bytes
// that have arrived.
func readHeader(r io.Reader, o Options) (*header, int, error) {
	var prefix [8]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return nil, 0, cutShort("the length of the header", err)
	}
	n := binary.LittleEndian.Uint64(prefix[:])
	if err := within("bytes of header", n, o.HeaderLimit); err != nil {
		return nil, 0, err
	}
	text, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err == nil && len(text) < int(n) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, 0, cutShort("the header", err)
	}
	h, err := parseHeader(text, o)
	return h, len(prefix) + len(text), err
}

// cutShort turns the end of a file in the middle of what into a FormatError.
// Other errors, of the stream itself, stay as they are.
func cutShort(what string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return &FormatError{Reason: "the file ends within " + what, Err: io.ErrUnexpectedEOF}
	}
	return err
}

// parseHeader reads the JSON and checks all that can be known from it.
func parseHeader(text []byte, o Options) (*header, error) {
	switch {
	case len(text) == 0 || text[0] != '{':
		return nil, &FormatError{Reason: "the header does not start with {"}
	case !utf8.Valid(text):
		return nil, &FormatError{Reason: "the header is not UTF-8"}
	}
	p := parser{scanner: scanner{text: text}, options: o, seen: map[string]bool{}}
	if err := p.object(p.entry); err != nil {
		return nil, err
	}
	for _, c := range text[p.at:] {
		if c != ' ' {
			return nil, p.fail("only spaces may follow the closing brace")
		}
	}
	return layOut(p.infos, p.metadata, o)
}

// parser collects what a header says.
type parser struct {
	scanner
	options  Options
	infos    []Info
	metadata map[string]string
	seen     map[string]bool
}

// entry takes the value of one key of the header.
func (p *parser) entry(key string) error {
	if p.seen[key] {
		return &FormatError{Tensor: key, Reason: "the name is there twice"}
	}
	p.seen[key] = true
	if key == metadataKey {
		return p.object(p.metadatum)
	}
	if err := within("tensors", uint64(len(p.infos)+1), p.options.TensorLimit); err != nil {
		return err
	}
	info, err := p.info(key)
	p.infos = append(p.infos, info)
	return err
}

// metadatum takes the value of one key of the metadata.
func (p *parser) metadatum(key string) error {
	if _, twice := p.metadata[key]; twice {
		return p.fail("the metadata has %.80q twice", key)
	}
	value, err := p.str()
	if p.metadata == nil {
		p.metadata = map[string]string{}
	}
	p.metadata[key] = value
	return err
}

// info takes the description of one tensor.
func (p *parser) info(name string) (Info, error) {
	info := Info{Name: name}
	var offsets []int
	seen := map[string]bool{}
	err := p.object(func(key string) (err error) {
		if seen[key] {
			return &FormatError{Tensor: name, Reason: key + " is there twice"}
		}
		seen[key] = true
		switch key {
		case "dtype":
			info.DType, err = p.str()
		case "shape":
			info.Shape, err = p.ints("dimensions", p.options.RankLimit)
		case "data_offsets":
			offsets, err = p.ints("data_offsets", 2)
		default:
			err = p.fail("tensor %.80q has the unknown key %.80q", name, key)
		}
		return err
	})
	if err != nil {
		return info, err
	}
	if !seen["dtype"] || !seen["shape"] || len(offsets) != 2 {
		return info, &FormatError{Tensor: name, Reason: "dtype, shape and two data_offsets are needed"}
	}
	info.begin, info.end = offsets[0], offsets[1]
	return info, nil
}

// ints takes an array of at most limit integers.
func (p *parser) ints(what string, limit int) ([]int, error) {
	out := []int{}
	err := p.list('[', ']', func() error {
		n, err := p.number()
		out = append(out, n)
		if err != nil {
			return err
		}
		return within(what, uint64(len(out)), limit)
	})
	return out, err
}
