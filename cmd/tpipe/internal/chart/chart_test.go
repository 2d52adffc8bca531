package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write testdata")

// example returns a chart that contains every kind of element.
func example() *Chart {
	return &Chart{
		Title: "Example <of> two panels", Note: "8 in flight & more",
		Size: "size of the tensor, bytes", Sizes: func(v float64) string { return fmt.Sprintf("%g", v) },
		Panels: []Panel{
			{Title: "round trip, p50", Values: func(v float64) string { return fmt.Sprintf("%g us", v) }, Log: true},
			{Title: "one way", Values: func(v float64) string { return fmt.Sprintf("%g GB/s", v) }},
		},
		Series: []Series{
			{Name: "shm/basic, here", Lines: [][]Point{{{0, 3}, {8, 4}, {65536, 12.5}, {1 << 20, 90}}, {{65536, 12}, {1 << 20, 25.5}}}},
			{Name: "shm/basic, peer", Kind: Peer, Lines: [][]Point{{{0, 4.3}, {8, 11.8}, {65536, 16.8}, {1 << 20, 103}}, {{65536, 11.6}, {1 << 20, 24.7}}}},
			{Name: "uv/basic, here", Hue: 1, Lines: [][]Point{{{0, 16}, {65536, 180}}, {{65536, 1.2}, {1 << 20, 4.1}}}},
			{Name: "memcpy", Kind: Bound, Lines: [][]Point{nil, {{65536, 33}, {1 << 20, 31}}}},
			{Name: "tcp", Hue: 1, Kind: Bound, Lines: [][]Point{nil, {{65536, 4}, {1 << 20, 5}}}},
		},
	}
}

func text(t *testing.T, c *Chart) string {
	t.Helper()
	var out bytes.Buffer
	n, err := c.WriteTo(&out)
	require.NoError(t, err)
	require.EqualValues(t, out.Len(), n)
	requireWellFormed(t, out.String())
	return out.String()
}

// requireWellFormed checks that text is a complete XML document whose root is an svg element, and
// that no attribute contains NaN or Inf.
func requireWellFormed(t *testing.T, text string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(text))
	var open []string
	for first := true; ; first = false {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		switch e := token.(type) {
		case xml.StartElement:
			require.Equal(t, first, e.Name.Local == "svg", e.Name.Local)
			require.Equal(t, "http://www.w3.org/2000/svg", e.Name.Space)
			open = append(open, e.Name.Local)
			for _, a := range e.Attr {
				require.NotContains(t, a.Value, "NaN")
				require.NotContains(t, a.Value, "Inf")
			}
		case xml.EndElement:
			open = open[:len(open)-1]
		}
	}
	require.Empty(t, open)
}

func TestGolden(t *testing.T) {
	const file = "testdata/example.svg"
	got := text(t, example())
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got, "go test ./cmd/tpipe/internal/chart -update writes it anew; look at it")
}

func TestTextIsEscaped(t *testing.T) {
	got := text(t, example())
	require.Contains(t, got, "Example &lt;of&gt; two panels")
	require.Contains(t, got, "8 in flight &amp; more")
}

// TestLinesDiffer checks that no two series of the example chart have lines of the same look, and
// that series with the same Hue share a colour.
func TestLinesDiffer(t *testing.T) {
	c := example()
	seen := map[string]bool{}
	for _, s := range c.Series {
		look := fmt.Sprint(s.stroke())
		require.False(t, seen[look], "%s looks like another one", s.Name)
		seen[look] = true
	}
	require.Equal(t, c.Series[0].colour(), c.Series[1].colour())
}

// TestOddData checks that charts without points, with few or many points, or with values that
// cannot be drawn are valid documents.
func TestOddData(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for name, points := range map[string][]Point{
		"nothing":        nil,
		"one point":      {{8, 5}},
		"only size 0":    {{0, 5}},
		"0 and one size": {{0, 5}, {8, 5}},
		"not numbers":    {{8, nan}, {nan, 8}, {8, inf}, {inf, 8}, {-8, 1}, {8, -1}, {16, 2}},
		"zero":           {{8, 0}, {16, 0}},
		"tiny and huge":  {{1, 1e-9}, {1 << 40, 1e12}},
		"many sizes":     many(60),
	} {
		t.Run(name, func(t *testing.T) {
			c := example()
			c.Series = []Series{{Name: name, Lines: [][]Point{points, points}}}
			got := text(t, c)
			if len(points) == 0 {
				require.Equal(t, 2, strings.Count(got, "nothing was measured"))
			}
		})
	}
	c := example()
	c.Panels, c.Series = nil, nil
	text(t, c)
}

func many(n int) (points []Point) {
	for i := range n {
		points = append(points, Point{math.Pow(1.5, float64(i)), float64(i + 1)})
	}
	return points
}

func TestScales(t *testing.T) {
	s := sizeScale([]float64{64, 0, 16, 16, 64})
	require.Equal(t, []float64{0, 16, 64}, s.ticks)
	require.Equal(t, []float64{0, 0.5, 1}, []float64{s.place(0), s.place(16), s.place(64)})

	s = logScale([]float64{3, 80})
	require.Equal(t, []float64{2, 5, 10, 20, 50, 100}, s.ticks)
	require.InDelta(t, 0, s.place(2), 1e-9)
	require.InDelta(t, 1, s.place(100), 1e-9)
	require.Equal(t, []float64{1, 10, 100, 1000, 10000}, logScale([]float64{3, 8000}).ticks)
	require.Len(t, logScale([]float64{10, 10}).ticks, 2, "a single value has room around it")

	s = linearScale([]float64{3, 25.5})
	require.Equal(t, []float64{0, 5, 10, 15, 20, 25, 30}, s.ticks)
	require.Equal(t, 0.5, s.place(15))
}

// TestLinear checks the ticks of a linear horizontal axis, and that a Curve has a line and no dots.
func TestLinear(t *testing.T) {
	got := text(t, &Chart{
		Size: "step", Sizes: func(v float64) string { return fmt.Sprintf("at %g", v) }, Linear: true,
		Panels: []Panel{{Values: func(v float64) string { return fmt.Sprintf("%g", v) }}},
		Series: []Series{{Name: "loss", Kind: Curve, Lines: [][]Point{{{100, 3}, {200, 2}, {300, 1}}}}},
	})
	for _, want := range []string{">at 0<", ">at 50<", ">at 300<", `points="223.3,92 366.7,192 510,292"`} {
		require.Contains(t, got, want)
	}
	require.Equal(t, 1, strings.Count(got, "<circle"), "only that of the legend")
}

// TestColumns checks that panels beyond the first row are moved down, and that the drawing is as wide
// as a row and high enough for all rows.
func TestColumns(t *testing.T) {
	c := example()
	for range 3 {
		c.Panels = append(c.Panels, c.Panels[0])
	}
	c.Columns = 2
	got := text(t, c)
	require.Contains(t, got, `viewBox="0 0 1080 1290"`)
	require.Equal(t, 2, strings.Count(got, `transform="translate(0,396)"`))
	require.Equal(t, 1, strings.Count(got, `transform="translate(0,792)"`))
	c.Columns = 9
	require.Contains(t, text(t, c), `viewBox="0 0 2700 `)
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func TestWriteFails(t *testing.T) {
	_, err := example().WriteTo(full{})
	require.ErrorIs(t, err, io.ErrShortWrite)
}
