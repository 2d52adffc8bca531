package nop

import (
	"encoding/hex"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sample is one line of testdata/nop-samples.txt: a value that libnop encoded.
type sample struct {
	bytes []byte
	cut   bool // the file shows only the start of the encoding
	total int  // length of the whole encoding
}

// loadSamples reads the samples of libnop's encoding from testdata, in lines like "uint64 128 (2)
// 80 80": a description, the number of bytes, and the bytes. It returns them by their description.
func loadSamples(t *testing.T) map[string]sample {
	text, err := os.ReadFile("testdata/nop-samples.txt")
	require.NoError(t, err)
	line := regexp.MustCompile(`(?m)^(.*?) +\((\d+)\) ([0-9a-f ]+?)( \.\.\.)?$`)
	samples := map[string]sample{}
	for _, m := range line.FindAllStringSubmatch(string(text), -1) {
		p, err := hex.DecodeString(strings.ReplaceAll(m[3], " ", ""))
		require.NoError(t, err)
		samples[m[1]] = sample{bytes: p, cut: m[4] != "", total: atoi(t, m[2])}
	}
	return samples
}

// golden contains for each sample how to encode it and the expected result of decoding. If the file has
// only the start of a sample, the size is from chapter 3.6 of the protocol and the contents from the
// visible part.
var golden = []struct {
	name   string
	encode func(dst []byte) []byte
	decode func(d *Decoder) any
	want   any
}{
	{"uint64 0", uintOf(0), readUint64, uint64(0)},
	{"uint64 127", uintOf(127), readUint64, uint64(127)},
	{"uint64 128", uintOf(128), readUint64, uint64(128)},
	{"uint64 255", uintOf(255), readUint64, uint64(255)},
	{"uint64 256", uintOf(256), readUint64, uint64(256)},
	{"uint64 65535", uintOf(65535), readUint64, uint64(65535)},
	{"uint64 65536", uintOf(65536), readUint64, uint64(65536)},
	{"uint64 4294967295", uintOf(4294967295), readUint64, uint64(4294967295)},
	{"uint64 4294967296", uintOf(4294967296), readUint64, uint64(4294967296)},
	{"int32 0", intOf(0), readInt32, int32(0)},
	{"int32 127", intOf(127), readInt32, int32(127)},
	{"int32 128", intOf(128), readInt32, int32(128)},
	{"int32 255", intOf(255), readInt32, int32(255)},
	{"int32 32768", intOf(32768), readInt32, int32(32768)},
	{"int32 -1", intOf(-1), readInt32, int32(-1)},
	{"int32 -64", intOf(-64), readInt32, int32(-64)},
	{"int32 -65", intOf(-65), readInt32, int32(-65)},
	{"int32 -129", intOf(-129), readInt32, int32(-129)},
	{"vector<uint64>{5,6}", uint64sOf(5, 6), readUint64s, []uint64{5, 6}},
	{"vector<uint64>{}", uint64sOf(), readUint64s, []uint64(nil)},
	{"vector<string>{a,bc}", stringsOf("a", "bc"), readStrings, []string{"a", "bc"}},
	{"string len 200 head", stringOf(strings.Repeat("x", 200)), readString, strings.Repeat("x", 200)},
	{"cuda_ipc desc, later chunk", outboxOf(outbox{slot: 2}), readOutbox, outbox{slot: 2}},
	{"cuda_ipc desc, first", outboxOf(firstOutbox), readOutbox, firstOutbox},
	{"cuda_ipc device descriptor", gpuOf(gpu{bootID, 25791, gpuID}), readGPU, gpu{bootID, 25791, gpuID}},
	{"cuda_basic dev desc cpu(any)", structOf("cpu", "any"), readStruct, []string{"cpu", "any"}},
	{"cuda_basic dev desc cuda(any)", structOf("cuda", "any"), readStruct, []string{"cuda", "any"}},
	{"cuda_xth desc", xthOf(someXth), readXth, someXth},
	{"gdr desc nic0", func(p []byte) []byte { return AppendUint(AppendStructHeader(p, 1), 0) }, readNIC, uint64(0)},
}

func TestGoldenSamples(t *testing.T) {
	samples := loadSamples(t)
	require.Len(t, samples, len(golden), "every sample has a case")
	for _, g := range golden {
		t.Run(g.name, func(t *testing.T) {
			s, ok := samples[g.name]
			require.True(t, ok, "the sample exists")
			encoded := g.encode(nil)
			require.Len(t, encoded, s.total)
			require.Equal(t, s.bytes, encoded[:len(s.bytes)])
			require.Equal(t, s.cut, len(s.bytes) < s.total)

			d := NewDecoder(encoded)
			require.Equal(t, g.want, g.decode(&d))
			require.NoError(t, d.Finish())
		})
	}
}
