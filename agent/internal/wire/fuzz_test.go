package wire

import (
	"bytes"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// FuzzDecode decodes arbitrary bytes as every message between agents: as a head, as a key, and as a
// message of the handshake, a status, or of a group round. It tests that a decoded message is the same after
// it was encoded and decoded again; of a message of a group round, it compares the encoded values
// and the sizes of the tensors.
func FuzzDecode(f *testing.F) {
	for _, c := range heads() {
		f.Add(c.message)
	}
	for _, text := range []string{"u", "ukey", "r2.1", "r2.2", "r.", "rzz.0"} {
		f.Add([]byte(text))
	}
	for _, message := range goldens(f) {
		f.Add(message)
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		fuzzHead(t, message)
		fuzzKey(t, message)
		fuzzNumber(t, message)
		for _, m := range []any{&Hello{}, &Answer{}, &Proof{}, &Done{}} {
			if err := DecodeHandshake(message, m); err != nil {
				require.ErrorIs(t, err, ErrProtocol)
				continue
			}
			again, err := EncodeHandshake(m)
			require.NoError(t, err)
			same := reflect.New(reflect.TypeOf(m).Elem()).Interface()
			require.NoError(t, DecodeHandshake(again, same))
			require.Equal(t, m, same)
		}
		if s, err := DecodeStatus(message); err == nil {
			again, err := EncodeStatus(s)
			require.NoError(t, err)
			same, err := DecodeStatus(again)
			require.NoError(t, err)
			require.Equal(t, s, same)
		} else {
			require.ErrorIs(t, err, ErrProtocol)
		}
		fuzzMember(t, message)
		for _, m := range []any{&GroupRequest{}, &GroupReply{}, &Workload{}} {
			fuzzGroup(t, message, m)
		}
	})
}

func fuzzMember(t *testing.T, message []byte) {
	m, err := DecodeMember(message)
	if err != nil {
		require.ErrorIs(t, err, ErrProtocol)
		return
	}
	n := m.Node("a")
	again, err := EncodeMember(NewMember(m.Client, n))
	require.NoError(t, err)
	same, err := DecodeMember(again)
	require.NoError(t, err)
	require.Equal(t, n, same.Node("a"))
}

func fuzzHead(t *testing.T, message []byte) {
	h, err := ParseHead(message)
	if err != nil {
		require.ErrorIs(t, err, ErrProtocol)
		return
	}
	require.LessOrEqual(t, max(len(h.Type), len(h.Name), len(h.Reason)), MaxName)
	require.LessOrEqual(t, h.Timeout, MaxTimeout)
	require.GreaterOrEqual(t, h.Timeout, time.Duration(0))
	require.True(t, bytes.HasSuffix(message, h.Body))
	var again []byte
	switch h.Kind {
	case KindRequest:
		again = AppendRequest(nil, h.Flags, h.ID, h.Timeout, string(h.Type), string(h.Name))
	case KindCancel:
		again = AppendCancel(nil, h.ID, string(h.Reason))
	case KindData:
		again = AppendData(nil, h.Flags, h.ID, h.Seq)
	case KindCredit:
		again = AppendCredit(nil, h.Flags, h.ID, h.Credit)
	default:
		again = AppendReply(nil, h.Kind, h.ID)
	}
	again[FlagsAt] = h.Flags
	same, err := ParseHead(append(again, h.Body...))
	require.NoError(t, err)
	require.Equal(t, h, same)
}

// fuzzKey tests that text, if ParseKey accepts it, is a key of the application, or one that
// AppendKey could have written, apart from leading zeros and capital letters. Otherwise the error
// must match ErrProtocol.
func fuzzKey(t *testing.T, text []byte) {
	key, number, ended, err := ParseKey(text)
	if err != nil {
		require.ErrorIs(t, err, ErrProtocol)
		return
	}
	if number == 0 {
		require.Equal(t, string(text), key)
		return
	}
	_, n, e, err := ParseKey(AppendKey(nil, number, ended))
	require.NoError(t, err)
	require.Equal(t, [2]uint64{number, ended}, [2]uint64{n, e})
}

// fuzzNumber tests that data, if ParseNumber accepts it, is a number that AppendNumber encodes to a
// value that ParseNumber decodes to the same number. Otherwise the error must match ErrProtocol.
func fuzzNumber(t *testing.T, data []byte) {
	n, err := ParseNumber(WindowHeader, data)
	if err != nil {
		require.ErrorIs(t, err, ErrProtocol)
		return
	}
	same, err := ParseNumber(WindowHeader, AppendNumber(nil, n))
	require.NoError(t, err)
	require.Equal(t, n, same)
}

// fuzzGroup decodes message into m, a pointer to a message of a group round. If that succeeds, it
// tests that m has the same encoding after it was encoded and decoded again. It ignores messages
// with large tensors.
func fuzzGroup(t *testing.T, message []byte, m any) {
	d := codec.NewDecoder(codec.NewRegistry(), codec.Limits{MaxElements: 1 << 16, ExpandedBytes: 1 << 20})
	if d.Reset(message) != nil {
		return
	}
	var storages []*tensor.Storage
	for _, p := range d.Parts() {
		if p.Bytes > 1<<16 || len(storages) > 64 {
			return
		}
		s, err := tensor.Heap{}.Alloc(p.Bytes)
		require.NoError(t, err)
		storages = append(storages, s)
	}
	if d.Supply(storages) != nil || d.Decode(m) != nil || d.Finish() != nil {
		return
	}
	encode := func(m any) (data []byte, storages []*tensor.Storage, sizes []int) {
		e := codec.NewEncoder(codec.NewRegistry(), codec.Limits{})
		require.NoError(t, e.Encode(m))
		data, parts, err := e.Finish()
		require.NoError(t, err)
		for _, p := range parts {
			bytes, err := tensor.FromBuffer(p.Buffer, tensor.U8, p.Buffer.Len())
			require.NoError(t, err)
			storages, sizes = append(storages, bytes.Storage()), append(sizes, p.Buffer.Len())
		}
		return data, storages, sizes
	}
	data, storages, sizes := encode(m)
	require.NoError(t, d.Reset(data))
	require.NoError(t, d.Supply(storages))
	same := reflect.New(reflect.TypeOf(m).Elem()).Interface()
	require.NoError(t, d.Decode(same))
	require.NoError(t, d.Finish())
	again, _, sizesAgain := encode(same)
	require.Equal(t, data, again)
	require.Equal(t, sizes, sizesAgain)
}
