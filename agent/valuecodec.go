package agent

import "github.com/tensorpipe-go/tensorpipe/agent/codec"

// Codec encodes arguments and results in place of package codec, which still makes
// the messages and encodes errors. All workers of a group have the same one. Its
// methods may be called by several goroutines at once.
type Codec interface {
	// Encode writes what ptr points to with the methods of e, Tensor and Encode
	// among them.
	Encode(e *codec.Encoder, ptr any) error

	// Decode reads the same in the same order, to what ptr points to. What the bytes
	// hold is what a peer sent.
	Decode(d *codec.Decoder, ptr any) error
}

// plainCodec is package codec.
type plainCodec struct{}

func (plainCodec) Encode(e *codec.Encoder, ptr any) error { return e.Encode(ptr) }
func (plainCodec) Decode(d *codec.Decoder, ptr any) error { return d.Decode(ptr) }

// encodeValue writes an argument, a result or a part of an error.
func (a *Agent) encodeValue(e *envelope, ptr any) error {
	if e.about.Kind == KindFailure {
		return e.encoder.Encode(ptr)
	}
	return a.values.Encode(e.encoder, ptr)
}
