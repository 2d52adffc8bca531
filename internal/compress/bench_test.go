package compress

import (
	"bytes"
	"fmt"
	"testing"
)

// BenchmarkCompress measures Compressor.Add for each codec and kind of data. Its rate is that of
// the uncompressed bytes.
func BenchmarkCompress(b *testing.B) {
	onEach(b, func(b *testing.B, c *Coders, codec Codec, data []byte) {
		for b.Loop() {
			p := c.NewCompressor()
			if _, err := p.Add(codec, [][]byte{data}, always); err != nil {
				b.Fatal(err)
			}
			p.Release()
		}
	})
}

func BenchmarkDecompress(b *testing.B) {
	onEach(b, func(b *testing.B, c *Coders, codec Codec, data []byte) {
		compressed := compressParts(b, c, codec, [][]byte{data})
		if compressed == nil {
			b.Skip("it gains nothing, and is not packed")
		}
		memory := bytes.Clone(data)
		for b.Loop() {
			copy(memory[len(memory)-len(compressed):], compressed)
			if err := c.DecompressInPlace(codec, [][]byte{memory}, len(compressed), always); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(len(data))/float64(len(compressed)), "ratio")
	})
}

func onEach(b *testing.B, run func(*testing.B, *Coders, Codec, []byte)) {
	for _, name := range []string{"zeros", "text", "normals", "random"} {
		for _, codec := range bothCodecs {
			b.Run(fmt.Sprint(name, "/", codec), func(b *testing.B) {
				data := contents[name](16 << 20)
				b.SetBytes(int64(len(data)))
				run(b, New(1), codec, data)
			})
		}
	}
}
