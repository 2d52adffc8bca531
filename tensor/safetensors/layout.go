package safetensors

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// layOut puts tensors into the order of their data and fails unless they cover
// it without overlap or hole.
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

// check fails unless the tensor starts at that byte and has the size that its
// dtype and shape say.
func (i *Info) check(begin int) error {
	var known bool
	if i.format, known = formatNamed(i.DType); !known {
		return &DTypeError{Tensor: i.Name, DType: i.DType, Reason: "is none of the format's"}
	}
	if i.begin != begin {
		return &FormatError{Tensor: i.Name, Reason: fmt.Sprintf(
			"data_offsets [%d, %d] overlap another tensor or leave a hole: the tensors before end at %d", i.begin, i.end, begin)}
	}
	n, err := tensor.NumElements(i.Shape)
	if err != nil {
		return &FormatError{Tensor: i.Name, Reason: "bad shape", Err: err}
	}
	size, ok := i.format.byteSize(n)
	if !ok {
		return &FormatError{Tensor: i.Name, Reason: fmt.Sprintf("%s%v takes no number of bytes that could be", i.DType, i.Shape)}
	}
	if size != i.end-i.begin {
		return &FormatError{Tensor: i.Name, Reason: fmt.Sprintf("%s%v takes %d bytes, not %d", i.DType, i.Shape, size, i.end-i.begin)}
	}
	return nil
}
