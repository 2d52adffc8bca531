package native

import (
	"encoding/binary"

	"github.com/tensorpipe-go/tensorpipe/internal/compress"
)

// PlainHead is how many bytes the body of a MESSAGE has before its inline bytes, if
// that shows in prefix, with which the body begins, and if all parts are inline
// and none is compressed. Else it is 0. It checks nothing.
func PlainHead(prefix []byte) int {
	if len(prefix) < messageFixed {
		return 0
	}
	number := func(at int) uint64 { return uint64(binary.LittleEndian.Uint32(prefix[at:])) }
	payloads, tensors := number(12), number(16)
	entries := messageFixed + payloads*payloadEntry + tensors*tensorEntry
	if uint64(len(prefix)) < entries {
		return 0
	}
	size := entries + number(8)
	at := prefix[messageFixed:]
	for range payloads {
		if at[12]&flagInline == 0 || compress.Codec(at[13]) != compress.None {
			return 0
		}
		size += uint64(binary.LittleEndian.Uint32(at[8:]))
		at = at[payloadEntry:]
	}
	for range tensors {
		if at[12]&flagInline == 0 || compress.Codec(at[15]) != compress.None {
			return 0
		}
		size += uint64(binary.LittleEndian.Uint32(at[8:])) + uint64(at[13]) + uint64(at[14])
		at = at[tensorEntry:]
	}
	if size > uint64(len(prefix)) {
		return 0
	}
	return int(size)
}

// DecodeHead is Decode for a body of length bytes of which only head is there, all
// before its inline bytes. The Data of the parts is left to [Message.SetData].
func (m *Message) DecodeHead(head []byte, length uint32, limits Limits) error {
	return m.decode(&scanner{body: head, length: uint64(length), limits: limits.WithDefaults()})
}
