package wire

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// SizeClass says from how many bytes on a tensor may take a channel. The classes
// of an answer are in the order in which channels are asked: a tensor takes the
// first that serves its devices and is not too large for it. They stand behind the
// [Marker] as words: "size:636d61=0000100000000000", the name and the number,
// little-endian, in hexadecimal.
type SizeClass struct {
	Channel string
	From    uint64
}

const sizeWord = "size:"

// AddSizes puts classes behind the marker of an answer; without one it does
// nothing.
func (m *BrochureAnswer) AddSizes(classes []SizeClass) {
	if _, ok := m.Marker(); !ok {
		return
	}
	for _, c := range classes {
		m.ChannelDeviceDescriptors[MarkerName][device.CPU()] += fmt.Sprintf(" %s%x=%x",
			sizeWord, c.Channel, binary.LittleEndian.AppendUint64(nil, c.From))
	}
}

// Sizes reads the classes of an answer. What is no class is an error: both ends
// must know all.
func (m *BrochureAnswer) Sizes() ([]SizeClass, error) {
	var classes []SizeClass
	for word := range m.words() {
		rest, ok := strings.CutPrefix(word, sizeWord)
		if !ok {
			continue
		}
		name, number, _ := strings.Cut(rest, "=")
		channel, err1 := hex.DecodeString(name)
		from, err2 := hex.DecodeString(number)
		if err1 != nil || err2 != nil || len(channel) == 0 || len(from) != 8 {
			return nil, fmt.Errorf("wire: %.40q is no size class", word)
		}
		classes = append(classes, SizeClass{string(channel), binary.LittleEndian.Uint64(from)})
	}
	return classes, nil
}
