package main

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/safetensors"
)

// weightsFile holds the initial weights of a small network that reads
// handwritten digits.
//
//go:embed testdata/digits_split_mlp_init.safetensors
var weightsFile []byte

// tensorNote is the metadata of one tensor in a message: its name, type and shape, and a
// checksum that the receiver verifies.
type tensorNote struct {
	Name   string `json:"name"`
	DType  string `json:"dtype"`
	Shape  []int  `json:"shape"`
	SHA256 string `json:"sha256"`
}

// weightsNote is the metadata of a message that holds one copy of the weights.
type weightsNote struct {
	FileSHA256 string `json:"file_sha256"` // of the tensors written as a file
	Last       bool   `json:"last"`        // the receiver reports now
}

// weights are tensors by name, with their metadata.
type weights struct {
	tensors map[string]*tensor.Tensor
	notes   []tensorNote // by name
	file    string       // checksum of the tensors written as a file
	bytes   int
}

// loadWeights decodes file, the content of a safetensors file, and returns its tensors with the
// checksum of each one and of the file that they make together. The error is that of package
// safetensors or tensor.
func loadWeights(file []byte) (*weights, error) {
	tensors, _, err := safetensors.Decode(bytes.NewReader(file), safetensors.Options{})
	if err != nil {
		return nil, err
	}
	w := &weights{tensors: tensors}
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		t := tensors[name]
		sum, err := checksum(t)
		if err != nil {
			return nil, err
		}
		w.notes = append(w.notes, tensorNote{name, t.DType().String(), t.Shape(), sum})
		w.bytes += t.ByteSize()
	}
	w.file, err = fileChecksum(tensors)
	return w, err
}

// message returns a message with one pipe tensor for each tensor of w, ordered by name. The message
// refers to the memory of w's tensors. Its metadata contains last, which is true for the last copy.
// The error is that of encoding the metadata, or of a tensor that is not contiguous.
func (w *weights) message(last bool) (*pipe.Message, error) {
	note, err := json.Marshal(weightsNote{w.file, last})
	if err != nil {
		return nil, err
	}
	m := &pipe.Message{Metadata: note}
	for _, n := range w.notes {
		buf, err := w.tensors[n.Name].Buffer()
		if err != nil {
			return nil, err
		}
		note, err := json.Marshal(n)
		if err != nil {
			return nil, err
		}
		m.Tensors = append(m.Tensors, pipe.Tensor{Buffer: buf, TargetDevice: device.CPU(), Metadata: note})
	}
	return m, nil
}

// verifyWeights returns nil if the tensors of a received message are those that were sent. d
// describes the message, and a holds its bytes. Each tensor must have the checksum in its own
// metadata, and a safetensors file made of all tensors must have the checksum in note. Otherwise it
// returns an error with the first difference.
func verifyWeights(note weightsNote, d *pipe.Descriptor, a pipe.Allocation) error {
	tensors := map[string]*tensor.Tensor{}
	for i, buf := range a.Tensors {
		var n tensorNote
		if err := json.Unmarshal(d.Tensors[i].Metadata, &n); err != nil {
			return fmt.Errorf("metadata of tensor %d: %w", i, err)
		}
		t, err := rebuild(n, buf)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", n.Name, err)
		}
		tensors[n.Name] = t
	}
	sum, err := fileChecksum(tensors)
	if err == nil && sum != note.FileSHA256 {
		err = fmt.Errorf("the file written from them has sha256 %s, sent was %s", sum, note.FileSHA256)
	}
	return err
}

// rebuild returns a tensor with the type and shape in n whose elements are the bytes of buf; it
// does not copy them. It returns an error if the type and shape do not fit buf, or if the checksum
// of the elements is not the one in n.
func rebuild(n tensorNote, buf device.Buffer) (*tensor.Tensor, error) {
	dtype, err := tensor.ParseDType(n.DType)
	if err != nil {
		return nil, err
	}
	t, err := tensor.FromBuffer(buf, dtype, n.Shape...)
	if err != nil {
		return nil, err
	}
	sum, err := checksum(t)
	if err == nil && sum != n.SHA256 {
		err = fmt.Errorf("it has sha256 %s, sent was %s", sum, n.SHA256)
	}
	return t, err
}

// checksum returns the SHA-256 of the bytes of t's elements as hexadecimal text. It fails if t is
// not contiguous.
func checksum(t *tensor.Tensor) (string, error) {
	buf, err := t.Buffer()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, segment := range buf.AppendSegments(nil) {
		h.Write(segment)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// fileChecksum returns the SHA-256 of a safetensors file with tensors as hexadecimal text. It
// encodes the file, as safetensors.Encode does, without storing it. The error is that of Encode.
func fileChecksum(tensors map[string]*tensor.Tensor) (string, error) {
	h := sha256.New()
	if err := safetensors.Encode(h, tensors, nil); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
