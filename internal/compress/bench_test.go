package compress

import (
	"bytes"
	"fmt"
	"testing"
)

// BenchmarkPack and BenchmarkUnpack are in bytes of the part, not of its form.
func BenchmarkPack(b *testing.B) {
	onEach(b, func(b *testing.B, c *Coders, codec Codec, data []byte) {
		for b.Loop() {
			p := c.NewPacking()
			if _, err := p.Add(codec, [][]byte{data}, always); err != nil {
				b.Fatal(err)
			}
			p.Release()
		}
	})
}

func BenchmarkUnpack(b *testing.B) {
	onEach(b, func(b *testing.B, c *Coders, codec Codec, data []byte) {
		form := pack(b, c, codec, [][]byte{data})
		if form == nil {
			b.Skip("it gains nothing, and is not packed")
		}
		memory := bytes.Clone(data)
		for b.Loop() {
			copy(memory[len(memory)-len(form):], form)
			if err := c.UnpackInPlace(codec, [][]byte{memory}, len(form), always); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(len(data))/float64(len(form)), "ratio")
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
