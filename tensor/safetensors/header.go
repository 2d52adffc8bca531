package safetensors

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"slices"
	"unicode/utf8"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// metadataKey is the key of the metadata, which is a map of strings.
const metadataKey = "__metadata__"

// Info describes one tensor of a file, as the file's header does.
type Info struct {
	Name  string
	DType string // as in the file, such as "F32"
	Shape []int

	begin, end int // offsets after the header
	format     format
}

// ByteSize returns the number of bytes that the tensor takes in the file.
func (i Info) ByteSize() int { return i.end - i.begin }

// Type returns the dtype that the tensor has in package tensor. If package tensor lacks the dtype
// of the file, it returns 0 and a *DTypeError.
func (i Info) Type() (tensor.DType, error) {
	if !i.format.dtype.Valid() {
		return 0, &DTypeError{Tensor: i.Name, DType: i.DType, Reason: "is not supported; convert the tensor to another one"}
	}
	return i.format.dtype, nil
}

// header is the validated content of a file's header.
type header struct {
	infos    []Info // in the order of the data
	index    map[string]int
	metadata map[string]string
	size     int // bytes of all tensors
}

// readHeader reads the length and the header from the start of a file, checks them, and returns the
// header and the number of bytes read from r. It reads no further, and allocates memory for the
// text only as bytes arrive. The error is a *FormatError if the header is not valid or r ends
// early, a *DTypeError for a dtype that the format does not have, a *LimitError if a limit in o is
// exceeded, or that of r. With an error the results have no meaning.
func readHeader(r io.Reader, o Options) (*header, int, error) {
	var prefix [8]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return nil, 0, truncated("the length of the header", err)
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
		return nil, 0, truncated("the header", err)
	}
	h, err := parseHeader(text, o)
	return h, len(prefix) + len(text), err
}

// truncated returns a *FormatError if err matches io.EOF or io.ErrUnexpectedEOF: the file ends
// early. The text of the error names the part of the file within which it ends, which the caller
// gives as what. truncated returns any other err unchanged, also nil.
func truncated(what string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return &FormatError{Reason: "the file ends within " + what, Err: io.ErrUnexpectedEOF}
	}
	return err
}

// parseHeader parses text, the JSON of a header, and returns the header after all checks that do
// not need the data. The header keeps no reference to text. The error is a *FormatError if text is
// not valid, a *DTypeError for a dtype that the format does not have, or a *LimitError if a limit
// in o is exceeded.
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

// parser parses a header and collects its content.
type parser struct {
	scanner
	options  Options
	infos    []Info
	metadata map[string]string
	seen     map[string]bool
}

// entry parses the value of one key at the top of the header and stores it in p: the metadata if
// key is "__metadata__", and otherwise the description of the tensor named key. The error is a
// *FormatError if the value is not valid or the key occurs twice, or a *LimitError if a limit is
// exceeded.
func (p *parser) entry(key string) error {
	if p.seen[key] {
		return &FormatError{Tensor: key, Reason: "the name occurs twice"}
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

// metadatum parses the value of one key of the metadata, a string, and stores it in p.metadata. The
// error is a *FormatError if the value is not valid or the key occurs twice.
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

// info parses and returns the description of the tensor with the given name. It does not check that
// dtype, shape and offsets are consistent. The error is a *FormatError if the text is not valid, or
// a *LimitError for too many dimensions or offsets.
func (p *parser) info(name string) (Info, error) {
	info := Info{Name: name}
	var offsets []int
	seen := map[string]bool{}
	err := p.object(func(key string) (err error) {
		if seen[key] {
			return &FormatError{Tensor: name, Reason: key + " occurs twice"}
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

// ints parses an array of integers from 0 up and returns them in a new slice. The error is a
// *FormatError if the text is not valid, or a *LimitError, with what as the name of the numbers, if
// there are more than limit of them.
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

// layOut sorts infos by the offsets of their data, checks them, and returns a header with infos,
// which it keeps, and metadata. The tensors must cover the data without overlap or gap, and each
// must have the size that its dtype and shape require. Otherwise the error is a *FormatError, or a
// *DTypeError for a dtype that the format does not have. It is a *LimitError if the tensors
// together exceed o.ByteLimit bytes.
func layOut(infos []Info, metadata map[string]string, o Options) (*header, error) {
	slices.SortStableFunc(infos, func(a, b Info) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end))
	})
	h := &header{infos: infos, index: make(map[string]int, len(infos)), metadata: metadata}
	for i := range infos {
		if err := infos[i].check(h.size); err != nil {
			return nil, err
		}
		h.index[infos[i].Name] = i
		h.size = infos[i].end
	}
	return h, within("bytes of tensors", uint64(h.size), o.ByteLimit)
}

// check sets i.format according to i.DType, and returns nil if the data of i begins at the offset
// begin and has the size that dtype and shape require. The error is a *DTypeError for a dtype that
// the format does not have, and otherwise a *FormatError.
func (i *Info) check(begin int) error {
	at := slices.IndexFunc(formats[:], func(f format) bool { return f.name == i.DType })
	if at < 0 {
		return &DTypeError{Tensor: i.Name, DType: i.DType, Reason: "does not exist in the format"}
	}
	i.format = formats[at]
	if i.begin != begin {
		return &FormatError{Tensor: i.Name, Reason: fmt.Sprintf(
			"data_offsets [%d, %d] overlap another tensor or leave a gap: the tensors before end at %d", i.begin, i.end, begin)}
	}
	n, err := tensor.NumElements(i.Shape)
	if err != nil {
		return &FormatError{Tensor: i.Name, Reason: "bad shape", Err: err}
	}
	size, ok := i.format.byteSize(n)
	if !ok {
		return &FormatError{Tensor: i.Name, Reason: fmt.Sprintf("%s%v has an impossible size in bytes", i.DType, i.Shape)}
	}
	if size != i.end-i.begin {
		return &FormatError{Tensor: i.Name, Reason: fmt.Sprintf("%s%v takes %d bytes, not %d", i.DType, i.Shape, size, i.end-i.begin)}
	}
	return nil
}

// format is a dtype of the safetensors format.
type format struct {
	name  string
	bits  uint64       // of one element
	dtype tensor.DType // zero if package tensor lacks it
}

// formats lists the dtypes by increasing alignment, in the order of the reference implementation; a
// writer orders tensors the other way round.
var formats = [...]format{
	{"BOOL", 8, tensor.Bool},
	{"F4", 4, 0},
	{"F6_E2M3", 6, 0},
	{"F6_E3M2", 6, 0},
	{"U8", 8, tensor.U8},
	{"I8", 8, tensor.I8},
	{"F8_E5M2", 8, 0},
	{"F8_E4M3", 8, 0},
	{"F8_E8M0", 8, 0},
	{"F8_E4M3FNUZ", 8, 0},
	{"F8_E5M2FNUZ", 8, 0},
	{"I16", 16, tensor.I16},
	{"U16", 16, 0},
	{"F16", 16, tensor.F16},
	{"BF16", 16, tensor.BF16},
	{"I32", 32, tensor.I32},
	{"U32", 32, 0},
	{"F32", 32, tensor.F32},
	{"C64", 64, tensor.C64},
	{"F64", 64, tensor.F64},
	{"I64", 64, tensor.I64},
	{"U64", 64, 0},
}

// byteSize returns the number of bytes that n elements of format f take. ok is false if that is not
// a whole number of bytes or does not fit into an int.
func (f format) byteSize(n int) (size int, ok bool) {
	high, low := bits.Mul64(uint64(n), f.bits)
	if high != 0 || low%8 != 0 || low/8 > math.MaxInt {
		return 0, false
	}
	return int(low / 8), true
}
