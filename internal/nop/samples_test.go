package nop

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The values in the samples: how each is written and read.

func atoi(t *testing.T, s string) int {
	n, err := strconv.Atoi(s)
	require.NoError(t, err)
	return n
}

type encoder = func([]byte) []byte

func uintOf(v uint64) encoder   { return func(p []byte) []byte { return AppendUint(p, v) } }
func intOf(v int64) encoder     { return func(p []byte) []byte { return AppendInt(p, v) } }
func stringOf(s string) encoder { return func(p []byte) []byte { return AppendString(p, s) } }

func uint64sOf(v ...uint64) encoder {
	return func(p []byte) []byte { return AppendUint64s(p, v) }
}

func stringsOf(list ...string) encoder {
	return func(p []byte) []byte {
		p = AppendArrayHeader(p, len(list))
		for _, s := range list {
			p = AppendString(p, s)
		}
		return p
	}
}

func structOf(members ...string) encoder {
	return func(p []byte) []byte {
		p = AppendStructHeader(p, len(members))
		for _, s := range members {
			p = AppendBytes(p, []byte(s))
		}
		return p
	}
}

func readUint64(d *Decoder) any  { return d.Uint64() }
func readInt32(d *Decoder) any   { return d.Int32() }
func readUint64s(d *Decoder) any { return d.Uint64s(nil) }
func readString(d *Decoder) any  { return string(d.Bytes()) }

func readStrings(d *Decoder) any {
	list := make([]string, d.Array(2))
	for i := range list {
		list[i] = string(d.Bytes())
	}
	return list
}

func readStruct(d *Decoder) any {
	d.Struct(2)
	return []string{string(d.Bytes()), string(d.Bytes())}
}

func readNIC(d *Decoder) any {
	d.Struct(1)
	return d.Uint64()
}

// outbox is cuda_ipc's descriptor of a chunk; an empty process means that the
// optional part is absent.
type outbox struct {
	device         int32
	slot           uint64
	process, mem   string
	ev0, ev1, rest string
}

var firstOutbox = outbox{
	device: 1, process: "4_effffffc_1234", mem: strings.Repeat("M", 64),
	ev0: strings.Repeat("E", 64), ev1: strings.Repeat("E", 64), rest: strings.Repeat("E", 128),
}

func outboxOf(o outbox) encoder {
	return func(p []byte) []byte {
		p = AppendUint(AppendInt(AppendStructHeader(p, 3), int64(o.device)), o.slot)
		if o.process == "" {
			return AppendEmpty(p)
		}
		p = AppendString(AppendString(AppendStructHeader(p, 3), o.process), o.mem)
		return stringsOf(o.ev0, o.ev1, o.rest[:64], o.rest[64:])(p)
	}
}

func readOutbox(d *Decoder) any {
	d.Struct(3)
	o := outbox{device: d.Int32(), slot: d.Uint64()}
	if d.Empty() {
		return o
	}
	d.Struct(3)
	o.process, o.mem = string(d.Bytes()), string(d.Bytes())
	events := readStrings(d).([]string)
	o.ev0, o.ev1, o.rest = events[0], events[1], events[2]+events[3]
	return o
}

// gpu is cuda_ipc's device descriptor.
type gpu struct {
	boot string
	pid  int64
	uuid string
}

const (
	bootID = "4314c807-d1f2-4ebb-9432-c0a43a41d690"
	gpuID  = "00112233-4455-6677-8899-aabbccddeeff"
)

func gpuOf(g gpu) encoder {
	return func(p []byte) []byte {
		p = AppendString(AppendStructHeader(p, 3), g.boot)
		return AppendString(AppendInt(p, g.pid), g.uuid)
	}
}

func readGPU(d *Decoder) any {
	d.Struct(3)
	return gpu{string(d.Bytes()), d.Int64(), string(d.Bytes())}
}

// xth is cuda_xth's descriptor.
type xth struct {
	event, ptr uint64
	device     int32
	stream     uint64
}

var someXth = xth{event: 0x55d0585044a0, ptr: 0x7f0000000000}

func xthOf(x xth) encoder {
	return func(p []byte) []byte {
		p = AppendUint(AppendUint(AppendStructHeader(p, 4), x.event), x.ptr)
		return AppendUint(AppendInt(p, int64(x.device)), x.stream)
	}
}

func readXth(d *Decoder) any {
	d.Struct(4)
	return xth{d.Uint64(), d.Uint64(), d.Int32(), d.Uint64()}
}
