package mpt

import (
	"encoding/binary"

	"github.com/tensorpipe-go/tensorpipe/internal/wire"
)

// wordKind is the first byte of what the two ends say in the native dialect, each
// word in a frame of its own. The rest is numbers, little-endian.
type wordKind byte

const (
	wordOpen     wordKind = 1 + iota // client: open that many lanes
	wordLanes                        // server: they are here, as a ServerHello
	wordOpened                       // client: that many are open, all or 0
	wordOffer                        // sender: the transfer is ready, on a way
	wordWithdraw                     // sender: it is not any more
	wordOrder                        // receiver: these bytes of it, on that lane
	wordRest                         // either: no more use for the lanes
)

// size is that of the numbers behind the kind.
func (k wordKind) size() int {
	switch k {
	case wordOpen, wordOpened:
		return 2
	case wordOffer:
		return 9
	case wordWithdraw:
		return 8
	case wordOrder:
		return 26
	case wordRest:
		return 0
	}
	return -1
}

// way is how a transfer moves.
type way byte

const (
	wayHost  way = iota // whole, by the pipe's own means
	wayLanes            // in slices
)

// word is what one end says. What its kind does not need is zero.
type word struct {
	kind           wordKind
	count          int // of lanes; of an order: its lane
	id             uint64
	way            way
	offset, length uint64
	hello          wire.MPTServerHello
}

func (w *word) append(dst []byte) []byte {
	dst = append(dst, byte(w.kind))
	switch w.kind {
	case wordOpen, wordOpened:
		return binary.LittleEndian.AppendUint16(dst, uint16(w.count))
	case wordLanes:
		return w.hello.Append(dst)
	case wordRest:
		return dst
	}
	dst = binary.LittleEndian.AppendUint64(dst, w.id)
	switch w.kind {
	case wordOffer:
		dst = append(dst, byte(w.way))
	case wordOrder:
		dst = binary.LittleEndian.AppendUint64(dst, w.offset)
		dst = binary.LittleEndian.AppendUint64(dst, w.length)
		dst = binary.LittleEndian.AppendUint16(dst, uint16(w.count))
	}
	return dst
}

// decodeWord decodes all words but wordLanes, of which it returns the kind.
func decodeWord(p []byte) (word, error) {
	if len(p) == 0 {
		return word{}, protocolError("an empty word")
	}
	w := word{kind: wordKind(p[0])}
	p = p[1:]
	if w.kind == wordLanes {
		return w, nil
	}
	if want := w.kind.size(); len(p) != want {
		return word{}, protocolError("word %d with %d bytes behind its kind", w.kind, len(p))
	}
	switch w.kind {
	case wordOpen, wordOpened:
		w.count = int(binary.LittleEndian.Uint16(p))
		return w, nil
	case wordRest:
		return w, nil
	}
	w.id = binary.LittleEndian.Uint64(p)
	switch w.kind {
	case wordOffer:
		w.way = way(p[8])
		if w.way > wayLanes {
			return word{}, protocolError("way %d", w.way)
		}
	case wordOrder:
		w.offset = binary.LittleEndian.Uint64(p[8:])
		w.length = binary.LittleEndian.Uint64(p[16:])
		w.count = int(binary.LittleEndian.Uint16(p[24:]))
	}
	return w, nil
}
