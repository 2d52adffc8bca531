package cma

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
)

// The frames of the native dialect have a fixed encoding, byte for byte, because other versions of
// the library read them.
func TestFrames(t *testing.T) {
	o := &description{id: 0x0102, pid: 0x1234, validityAddr: 0xc000010000, validityValue: 0xfedcba9876543210}
	text := appendPiece(appendPiece(appendDescription(nil, o), segment{0xc000020000, 100}), segment{0xc000030000, 1 << 32})
	require.Equal(t, strings.Join([]string{
		"01000000", "34120000", "0201000000000000", "00000100c0000000", "1032547698badcfe",
		"00000200c0000000", "6400000000000000", "00000300c0000000", "0000000001000000",
	}, ""), hex.EncodeToString(text))
	got, err := decodeDescription(text)
	require.NoError(t, err)
	o.pieces, o.size = []segment{{0xc000020000, 100}, {0xc000030000, 1 << 32}}, 1<<32+100
	require.Equal(t, o, got)

	text = appendHead(nil, kindCopied, 0, 0x0102)
	require.Equal(t, "03000000"+"00000000"+"0201000000000000", hex.EncodeToString(text))
	id, err := decodeControl(text)
	require.NoError(t, err)
	require.EqualValues(t, 0x0102, id)
	require.Equal(t, byte(kindRevoke), appendHead(nil, kindRevoke, 0, 1)[0])
}

func TestBadFrames(t *testing.T) {
	good := appendPiece(appendDescription(nil, &description{id: 1, pid: 1, validityAddr: 1, validityValue: 1}), segment{1, 1})
	spoilt := func(at int, b byte) []byte {
		p := append([]byte(nil), good...)
		p[at] = b
		return p
	}
	huge := appendPiece(appendPiece(good[:descriptionHead:descriptionHead], segment{1, 1 << 63}), segment{1, 1})
	twice := appendPiece(good[:len(good):len(good)], segment{1, 1<<63 - 1})
	for name, p := range map[string][]byte{
		"no pieces":          good[:descriptionHead],
		"half a piece":       good[:len(good)-8],
		"reserved byte":      spoilt(2, 1),
		"no process":         spoilt(4, 0),
		"negative process":   spoilt(7, 0x80),
		"no word":            spoilt(24, 0),
		"empty piece":        spoilt(40, 0),
		"size beyond int64":  huge,
		"sizes beyond int64": twice,
	} {
		_, err := decodeDescription(p)
		require.ErrorIs(t, err, channel.ErrProtocol, name)
	}
	validity := appendHead(nil, kindCopied, 0, 1)
	for _, p := range [][]byte{validity[:15], append(validity, 0), appendHead(nil, kindCopied, 1, 1)} {
		_, err := decodeControl(p)
		require.ErrorIs(t, err, channel.ErrProtocol)
	}
}

func FuzzDecodeOffer(f *testing.F) {
	f.Add(appendPiece(appendDescription(nil, &description{id: 1, pid: 2, validityAddr: 3, validityValue: 4}), segment{5, 6}))
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) == 0 || p[0] != kindDescribe {
			return
		}
		o, err := decodeDescription(p)
		if err != nil {
			require.ErrorIs(t, err, channel.ErrProtocol)
			return
		}
		again := appendDescription(nil, o)
		for _, s := range o.pieces {
			again = appendPiece(again, s)
		}
		require.Equal(t, p, again)
	})
}
