package native

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// Whatever shows of a plain message, its head is found or not, and never wrongly;
// the head and the inline bytes make what the whole body does.
func TestPlainHead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bytes := rapid.SliceOfN(rapid.Byte(), 0, 40)
		m := &Message{Metadata: bytes.Draw(t, "metadata")}
		for range rapid.IntRange(0, 5).Draw(t, "payloads") {
			p := bytes.Draw(t, "payload")
			m.Payloads = append(m.Payloads, Payload{Length: uint64(len(p)), Inline: true, Data: p, Metadata: bytes.Draw(t, "of payload")})
		}
		for range rapid.IntRange(0, 5).Draw(t, "tensors") {
			p := bytes.Draw(t, "tensor")
			m.Tensors = append(m.Tensors, Tensor{Length: uint64(len(p)), Inline: true, Data: p, Source: device.CPU(), Metadata: bytes.Draw(t, "of tensor")})
		}
		body := m.Append(nil, false)[HeaderSize:]
		descriptor, inline := m.sizes()
		shown := rapid.IntRange(0, len(body)).Draw(t, "shown")
		n := PlainHead(body[:shown])
		if shown < int(descriptor) {
			require.Zero(t, n)
			return
		}
		require.EqualValues(t, descriptor, n)

		var whole, head Message
		require.NoError(t, whole.Decode(body, Limits{}))
		require.NoError(t, head.DecodeHead(body[:n], uint32(len(body)), Limits{}))
		if inline > 0 {
			head.SetData(body[n:])
		}
		require.Equal(t, whole.Payloads, head.Payloads)
		require.Equal(t, whole.Tensors, head.Tensors)
		require.Error(t, new(Message).DecodeHead(body[:n], uint32(len(body))+1, Limits{}), "a body of another length")
	})
}

func TestPlainHeadIsOfPlainMessages(t *testing.T) {
	plain := Message{Payloads: []Payload{{Length: 3, Inline: true, Data: []byte("abc")}}}
	require.NotZero(t, PlainHead(plain.Append(nil, false)[HeaderSize:]))
	large := Message{Payloads: []Payload{{Length: 3}}}
	require.Zero(t, PlainHead(large.Append(nil, false)[HeaderSize:]))
	packed := Message{Payloads: []Payload{{Length: 30, Inline: true, Codec: 1, Form: 3, Data: []byte("abc")}}}
	require.Zero(t, PlainHead(packed.Append(nil, false)[HeaderSize:]))
}
