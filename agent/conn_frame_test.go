package agent

import (
	"bytes"
	"encoding/binary"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// heads returns messages of each kind, and their heads.
func heads() map[string]struct {
	message []byte
	head    head
} {
	body := []byte("body")
	long := strings.Repeat("n", maxName)
	return map[string]struct {
		message []byte
		head    head
	}{
		"request": {
			append(appendRequest(nil, flagPayload|flagNested, 300, time.Second, "type", "name"), body...),
			head{kind: KindRequest, flags: flagPayload | flagNested, id: 300, timeout: time.Second, typ: []byte("type"), name: []byte("name"), body: body},
		},
		"request without a limit": {
			appendRequest(nil, flagStack, 1, 0, "", long),
			head{kind: KindRequest, flags: flagStack, id: 1, typ: []byte{}, name: []byte(long), body: []byte{}},
		},
		"request with less than a microsecond": {
			appendRequest(nil, 0, 1, 1, "", "f"),
			head{kind: KindRequest, id: 1, timeout: time.Microsecond, typ: []byte{}, name: []byte("f"), body: []byte{}},
		},
		"request with a limit beyond the maximum": {
			[]byte{byte(KindRequest), 0, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0, 0},
			head{kind: KindRequest, id: 1, timeout: maxTimeout, typ: []byte{}, name: []byte{}, body: []byte{}},
		},
		"reply": {
			append(appendHead(nil, KindReply, 0, math.MaxUint64), body...),
			head{kind: KindReply, id: math.MaxUint64, body: body},
		},
		"failure": {appendHead(nil, KindFailure, flagPayload, 7), head{kind: KindFailure, flags: flagPayload, id: 7, body: []byte{}}},
		"cancel": {
			appendText(appendHead(nil, KindCancel, 0, 7), "why"),
			head{kind: KindCancel, id: 7, text: []byte("why"), body: []byte{}},
		},
	}
}

func TestParseHead(t *testing.T) {
	for name, c := range heads() {
		t.Run(name, func(t *testing.T) {
			got, err := parseHead(c.message)
			require.NoError(t, err)
			require.Equal(t, c.head, got)
			whole := len(c.message) - len(c.head.body)
			for n := range whole {
				_, err := parseHead(c.message[:n])
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
		"kind beyond the last": {[]byte{byte(KindCancel) + 1, 0, 1, 0}, "kind 5"},
		"number without end":   {append([]byte{byte(KindReply), 0}, huge...), "reply that ends early"},
		"limit without end":    {append([]byte{byte(KindRequest), 0, 1}, huge...), "request that ends early"},
		"text beyond the end":  {texts(10, 9), "cancel that ends early"},
		"text of any length":   {texts(math.MaxUint64, 9), "cancel that ends early"},
		"text beyond maxName":  {texts(maxName+1, 2*maxName), "holds a text of more than 1024 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseHead(c.message)
			require.ErrorIs(t, err, ErrProtocol)
			require.ErrorContains(t, err, c.text)
		})
	}
}

// FuzzParseHead parses arbitrary bytes. A head that could be parsed is the same after it was encoded and
// parsed again.
func FuzzParseHead(f *testing.F) {
	for _, c := range heads() {
		f.Add(c.message)
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		h, err := parseHead(message)
		if err != nil {
			require.ErrorIs(t, err, ErrProtocol)
			return
		}
		require.LessOrEqual(t, max(len(h.typ), len(h.name), len(h.text)), maxName)
		require.LessOrEqual(t, h.timeout, maxTimeout)
		require.GreaterOrEqual(t, h.timeout, time.Duration(0))
		require.True(t, bytes.HasSuffix(message, h.body))
		var again []byte
		switch h.kind {
		case KindRequest:
			again = appendRequest(nil, h.flags, h.id, h.timeout, string(h.typ), string(h.name))
		case KindCancel:
			again = appendText(appendHead(nil, h.kind, h.flags, h.id), string(h.text))
		default:
			again = appendHead(nil, h.kind, h.flags, h.id)
		}
		same, err := parseHead(append(again, h.body...))
		require.NoError(t, err)
		require.Equal(t, h, same)
	})
}
