package main

import (
	"bytes"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// compareShape says where an echo's description differs from that of what was
// sent, nil if nowhere.
func compareShape(sent, back *pipe.Descriptor) error {
	if len(back.Payloads) != len(sent.Payloads) || len(back.Tensors) != len(sent.Tensors) {
		return fmt.Errorf("%d payloads and %d tensors came back, sent were %d and %d",
			len(back.Payloads), len(back.Tensors), len(sent.Payloads), len(sent.Tensors))
	}
	if !bytes.Equal(sent.Metadata, back.Metadata) {
		return fmt.Errorf("metadata %q came back, sent was %q", shorten(back.Metadata), shorten(sent.Metadata))
	}
	for i, p := range sent.Payloads {
		if err := comparePart(p.Length, back.Payloads[i].Length, p.Metadata, back.Payloads[i].Metadata); err != nil {
			return fmt.Errorf("payload %d: %w", i, err)
		}
	}
	for i, t := range sent.Tensors {
		b := back.Tensors[i]
		err := comparePart(t.Length, b.Length, t.Metadata, b.Metadata)
		if err == nil && (t.SourceDevice != b.SourceDevice || t.TargetDevice != b.TargetDevice) {
			err = fmt.Errorf("it came back from %s for %s, sent was from %s for %s",
				b.SourceDevice, b.TargetDevice, t.SourceDevice, t.TargetDevice)
		}
		if err != nil {
			return fmt.Errorf("tensor %d: %w", i, err)
		}
	}
	return nil
}

func comparePart(sent, back int, sentMetadata, backMetadata []byte) error {
	if sent != back {
		return fmt.Errorf("%d bytes came back, sent were %d", back, sent)
	}
	if !bytes.Equal(sentMetadata, backMetadata) {
		return fmt.Errorf("metadata %q came back, sent was %q", shorten(backMetadata), shorten(sentMetadata))
	}
	return nil
}

// compareBytes says where the payloads and tensors of two messages of the same
// shape differ, nil if nowhere.
func compareBytes(sent, back *parcel) error {
	for i, p := range sent.memory.Payloads {
		if err := compareData(p, back.memory.Payloads[i]); err != nil {
			return fmt.Errorf("payload %d: %w", i, err)
		}
	}
	for i, t := range sent.memory.Tensors {
		s, _ := t.Contiguous()
		b, _ := back.memory.Tensors[i].Contiguous()
		if err := compareData(s, b); err != nil {
			return fmt.Errorf("tensor %d: %w", i, err)
		}
	}
	return nil
}

func compareData(sent, back []byte) error {
	if bytes.Equal(sent, back) {
		return nil
	}
	for i, b := range sent {
		if b != back[i] {
			return fmt.Errorf("byte %d of %d came back as %#02x, sent was %#02x", i, len(sent), back[i], b)
		}
	}
	return nil
}

func shorten(p []byte) []byte { return p[:min(len(p), 40)] }
