package chart

import (
	"math"
	"slices"
	"strings"
)

// panel returns an SVG element with the i-th panel: its title, its axes, and a line for each
// series. The axes begin at the horizontal coordinate left. A panel without any value has a short
// text in place of axes and lines.
func (c *Chart) panel(i int, left float64) node {
	g := element("g", nil)
	g.add(label(left, top-14, "panel", c.Panels[i].Title))
	var sizes, values []float64 // of all points that the panel can show
	for _, s := range c.Series {
		for _, p := range c.points(s, i) {
			sizes, values = append(sizes, p.Size), append(values, p.Value)
		}
	}
	if len(values) == 0 {
		g.add(label(left+panelWidth/2, top+panelHeight/2, "middle", "nothing was measured"))
		return g
	}
	vertical := linearScale
	if c.Panels[i].Log {
		vertical = logScale
	}
	horizontal := sizeScale
	if c.Linear {
		horizontal = linearScale
	}
	a := axes{left, horizontal(sizes), vertical(values)}
	g.add(a.vertical(c.Panels[i].Values)...)
	g.add(a.horizontal(c.Sizes, c.Size)...)
	for _, s := range c.Series {
		g.add(c.line(a, s, i)...)
	}
	return g
}

// points returns the points of the series s that the i-th panel can show, in a new slice. It leaves
// out points with a negative or not finite size or value, and on a logarithmic axis those with the
// value 0.
func (c *Chart) points(s Series, i int) (out []Point) {
	if i >= len(s.Lines) {
		return nil
	}
	for _, p := range s.Lines[i] {
		if p.Size >= 0 && p.Value >= 0 && !math.IsInf(p.Size+p.Value, 0) && (p.Value > 0 || !c.Panels[i].Log) {
			out = append(out, p)
		}
	}
	return out
}

// axes map sizes and values to coordinates of a panel whose left end is at left.
type axes struct {
	left   float64
	sizes  scale
	values scale
}

// x returns the horizontal coordinate of a size in the drawing, rounded to tenths of a unit, which
// keeps the file small.
func (a axes) x(size float64) float64 { return tenths(a.left + panelWidth*a.sizes.place(size)) }

// y returns the vertical coordinate of a value in the drawing, rounded to tenths of a unit.
func (a axes) y(value float64) float64 { return tenths(top + panelHeight*(1-a.values.place(value))) }

func tenths(v float64) float64 { return math.Round(v*10) / 10 }

// vertical returns the SVG elements of the vertical axis: its line, and for each tick a horizontal
// grid line and a label. format returns the label of a value.
func (a axes) vertical(format func(float64) string) (out []node) {
	for _, v := range a.values.ticks {
		y := a.y(v)
		out = append(out, line("grid", a.left, y, a.left+panelWidth, y), label(a.left-8, y+4, "end", format(v)))
	}
	return append(out, line("axis", a.left, top, a.left, top+panelHeight))
}

// tickWidth is the width of the label of a size.
const tickWidth = 44

// horizontal returns the SVG elements of the horizontal axis: its line, a mark and a label for each
// tick, and the text name below. format returns the label of a size. A label that would overlap the
// one before it is left out.
func (a axes) horizontal(format func(float64) string, name string) []node {
	const bottom = top + panelHeight
	out := []node{line("axis", a.left, bottom, a.left+panelWidth, bottom)}
	last := math.Inf(-1)
	for _, size := range a.sizes.ticks {
		x := a.x(size)
		out = append(out, line("axis", x, bottom, x, bottom+4))
		if x-last >= tickWidth {
			out = append(out, label(x, bottom+18, "tick", format(size)))
			last = x
		}
	}
	return append(out, label(a.left+panelWidth/2, bottom+38, "tick", name))
}

// line returns the SVG elements of the series s in the i-th panel, whose axes are a: a line, and a
// dot for each point with the size and value as its title, unless s is a Curve. It returns nil if the
// panel can show no point of s.
func (c *Chart) line(a axes, s Series, i int) []node {
	points := c.points(s, i)
	if len(points) == 0 {
		return nil
	}
	stroke := s.stroke()
	var path strings.Builder
	var dots []node
	for k, p := range points {
		x, y := a.x(p.Size), a.y(p.Value)
		if k > 0 {
			path.WriteByte(' ')
		}
		path.WriteString(number(x) + "," + number(y))
		if s.Kind == Curve {
			continue
		}
		dot := s.dot(x, y)
		dot.add(textElement("title", nil, s.Name+", "+c.Sizes(p.Size)+": "+c.Panels[i].Values(p.Value)))
		dots = append(dots, dot)
	}
	stroke["points"] = path.String()
	return append([]node{element("polyline", stroke)}, dots...)
}

// scale maps values to positions on an axis, between 0 and 1, and has the values at which the axis has
// ticks.
type scale struct {
	place func(float64) float64
	ticks []float64
}

// sizeScale returns a logarithmic scale with a tick at each of sizes, which may contain duplicates.
// Size 0 is placed as if it were a quarter of the smallest other size. A single size is in the
// middle.
func sizeScale(sizes []float64) scale {
	sizes = slices.Compact(slices.Sorted(slices.Values(sizes)))
	doublings := func(size float64) float64 {
		if size > 0 {
			return math.Log2(size)
		}
		if last := len(sizes) - 1; last > 0 {
			return math.Log2(sizes[1]) - 2
		}
		return 0
	}
	if len(sizes) < 2 {
		return scale{func(float64) float64 { return 0.5 }, sizes}
	}
	first, last := doublings(sizes[0]), doublings(sizes[len(sizes)-1])
	return scale{func(size float64) float64 { return (doublings(size) - first) / (last - first) }, sizes}
}

// logScale returns a logarithmic scale that contains all values. Its ticks are powers of ten and,
// if the largest value is at most 500 times the smallest, also twice and five times these. values
// must be positive and not empty.
func logScale(values []float64) scale {
	low, high := slices.Min(values), slices.Max(values)
	wide := high/low > 500
	var ticks []float64
	for power := math.Floor(math.Log10(low)); power <= math.Ceil(math.Log10(high)); power++ {
		for _, m := range []float64{1, 2, 5} {
			if m == 1 || !wide {
				ticks = append(ticks, m*math.Pow(10, power))
			}
		}
	}
	for len(ticks) > 2 && ticks[1] <= low {
		ticks = ticks[1:]
	}
	for len(ticks) > 2 && ticks[len(ticks)-2] >= high {
		ticks = ticks[:len(ticks)-1]
	}
	first, last := math.Log(ticks[0]), math.Log(ticks[len(ticks)-1])
	return scale{func(v float64) float64 { return (math.Log(v) - first) / (last - first) }, ticks}
}

// linearScale returns a linear scale that begins at 0 and contains all values, with at most seven
// ticks at round numbers. values must not be negative or empty.
func linearScale(values []float64) scale {
	high := slices.Max(values)
	if high <= 0 {
		high = 1
	}
	step := math.Pow(10, math.Floor(math.Log10(high/6)))
	for _, m := range []float64{1, 2, 5, 10} {
		if high/(m*step) <= 6 {
			step *= m
			break
		}
	}
	n := math.Ceil(high / step)
	var ticks []float64
	for i := range int(n) + 1 {
		ticks = append(ticks, float64(i)*step)
	}
	return scale{func(v float64) float64 { return v / (n * step) }, ticks}
}

// legend is the drawing of the names of the series, below the panels, and its height.
type legend struct {
	group  node
	height float64
}

// legend returns the legend, which lies below the panels: a sample line and the name of each
// series, in as many columns as fit into width. The panels have the height of one row and of lower.
// The height of the legend does not include the panels.
func (c *Chart) legend(width, lower float64) legend {
	columns := max(int((width-marginLeft)/legendWidth), 1)
	g := element("g", nil)
	for i, s := range c.Series {
		x := marginLeft + float64(i%columns)*legendWidth
		y := top + panelHeight + below + lower + float64(i/columns)*legendRow
		sample := s.stroke()
		sample["points"] = number(x) + "," + number(y) + " " + number(x+36) + "," + number(y)
		g.add(element("polyline", sample), s.dot(x+18, y))
		g.add(label(x+46, y+4, "entry", s.Name))
	}
	rows := (len(c.Series) + columns - 1) / columns
	return legend{g, float64(rows) * legendRow}
}
