package wire

import (
	"bytes"
	"encoding/binary"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// payload sets FlagPayload in the head of message, which it changes, and returns message.
func payload(message []byte) []byte {
	message[FlagsAt] |= FlagPayload
	return message
}

// heads returns encoded messages of each kind with the heads that ParseHead must return for them,
// by a description.
func heads() map[string]struct {
	message []byte
	head    Head
} {
	body := []byte("body")
	long := strings.Repeat("n", MaxName)
	return map[string]struct {
		message []byte
		head    Head
	}{
		"request": {
			append(AppendRequest(nil, FlagPayload|FlagNested, 300, time.Second, "type", "name"), body...),
			Head{Kind: KindRequest, Flags: FlagPayload | FlagNested, ID: 300, Timeout: time.Second, Type: []byte("type"), Name: []byte("name"), Body: body},
		},
		"request without a limit": {
			AppendRequest(nil, FlagStack, 1, 0, "", long),
			Head{Kind: KindRequest, Flags: FlagStack, ID: 1, Type: []byte{}, Name: []byte(long), Body: []byte{}},
		},
		"request with less than a microsecond": {
			AppendRequest(nil, 0, 1, 1, "", "f"),
			Head{Kind: KindRequest, ID: 1, Timeout: time.Microsecond, Type: []byte{}, Name: []byte("f"), Body: []byte{}},
		},
		"request with a limit beyond the maximum": {
			[]byte{byte(KindRequest), 0, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0, 0},
			Head{Kind: KindRequest, ID: 1, Timeout: MaxTimeout, Type: []byte{}, Name: []byte{}, Body: []byte{}},
		},
		"reply": {
			append(AppendReply(nil, KindReply, math.MaxUint64), body...),
			Head{Kind: KindReply, ID: math.MaxUint64, Body: body},
		},
		"failure": {payload(AppendReply(nil, KindFailure, 7)), Head{Kind: KindFailure, Flags: FlagPayload, ID: 7, Body: []byte{}}},
		"cancel": {
			AppendCancel(nil, 7, "why"),
			Head{Kind: KindCancel, ID: 7, Reason: []byte("why"), Body: []byte{}},
		},
		"data": {
			append(AppendData(nil, FlagCaller, 7, 300), body...),
			Head{Kind: KindData, Flags: FlagCaller, ID: 7, Seq: 300, Body: body},
		},
		"credit": {
			AppendCredit(nil, 0, 7, math.MaxUint64),
			Head{Kind: KindCredit, ID: 7, Credit: math.MaxUint64, Body: []byte{}},
		},
	}
}

func TestParseHead(t *testing.T) {
	for name, c := range heads() {
		t.Run(name, func(t *testing.T) {
			got, err := ParseHead(c.message)
			require.NoError(t, err)
			require.Equal(t, c.head, got)
			whole := len(c.message) - len(c.head.Body)
			for n := range whole {
				_, err := ParseHead(c.message[:n])
				require.ErrorIs(t, err, ErrProtocol, "%d bytes of %d", n, whole)
			}
		})
	}
}

func TestParseHeadOfGarbage(t *testing.T) {
	huge := bytes.Repeat([]byte{0xff}, 11)
	texts := func(length uint64, bytes int) []byte {
		return append(binary.AppendUvarint([]byte{byte(KindCancel), 0, 1}, length), make([]byte, bytes)...)
	}
	for name, c := range map[string]struct {
		message []byte
		text    string
	}{
		"nothing":              {nil, "message of 0 bytes"},
		"kind 0":               {make([]byte, 10), "kind 0"},
		"kind beyond the last": {[]byte{byte(KindCredit) + 1, 0, 1, 0}, "kind 7"},
		"number without end":   {append([]byte{byte(KindReply), 0}, huge...), "reply that ends early"},
		"limit without end":    {append([]byte{byte(KindRequest), 0, 1}, huge...), "request that ends early"},
		"text beyond the end":  {texts(10, 9), "cancel that ends early"},
		"text of any length":   {texts(math.MaxUint64, 9), "cancel that ends early"},
		"text beyond MaxName":  {texts(MaxName+1, 2*MaxName), "holds a text of more than 1024 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseHead(c.message)
			require.ErrorIs(t, err, ErrProtocol)
			require.ErrorContains(t, err, c.text)
		})
	}
}

// TestParseKey tests that ParseKey accepts a key of the application, or a numbered one whose second
// number is smaller than the first, and rejects other texts with ErrProtocol.
func TestParseKey(t *testing.T) {
	key, number, ended, err := ParseKey([]byte("u1.2"))
	require.NoError(t, err)
	require.Equal(t, "u1.2", key)
	require.Zero(t, number+ended)
	key, number, ended, err = ParseKey([]byte("rz.a"))
	require.NoError(t, err)
	require.Equal(t, "rz", key)
	require.Equal(t, [2]uint64{35, 10}, [2]uint64{number, ended})
	for _, text := range []string{"", "x", "r", "r1", "r.", "r1.", "r.1", "r1.1", "r1.2", "r0.0", "r-1.0", "r1.0.0", "r1.g!", "rzzzzzzzzzzzzzz.0"} {
		_, _, _, err := ParseKey([]byte(text))
		require.ErrorIs(t, err, ErrProtocol, "%q", text)
	}
	_, _, _, err = ParseKey(append([]byte("u"), make([]byte, MaxName+1)...))
	require.ErrorIs(t, err, ErrProtocol)
}
