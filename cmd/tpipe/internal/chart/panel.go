package chart

import (
	"math"
	"strings"
)

// panel draws the axes of panel i, which begin at left, and its lines.
func (c *Chart) panel(i int, left float64) node {
	g := element("g", nil)
	g.add(label(left, top-14, "panel", c.Panels[i].Title))
	sizes, values := c.drawn(i)
	if len(values) == 0 {
		g.add(label(left+panelWidth/2, top+panelHeight/2, "middle", "nothing was measured"))
		return g
	}
	vertical := linearScale
	if c.Panels[i].Log {
		vertical = logScale
	}
	a := axes{left, sizeScale(sizes), vertical(values)}
	g.add(a.vertical(c.Panels[i].Values)...)
	g.add(a.horizontal(c.Sizes, c.Size)...)
	for _, s := range c.Series {
		g.add(c.line(a, s, i)...)
	}
	return g
}

// drawn are the sizes and values of all points that panel i can show.
func (c *Chart) drawn(i int) (sizes, values []float64) {
	for _, s := range c.Series {
		for _, p := range c.points(s, i) {
			sizes, values = append(sizes, p.Size), append(values, p.Value)
		}
	}
	return sizes, values
}

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

// axes place what a panel shows.
type axes struct {
	left   float64
	sizes  scale
	values scale
}

// x and y are in tenths of a pixel, which keeps the file small.
func (a axes) x(size float64) float64 { return tenths(a.left + panelWidth*a.sizes.place(size)) }

func (a axes) y(value float64) float64 { return tenths(top + panelHeight*(1-a.values.place(value))) }

func tenths(v float64) float64 { return math.Round(v*10) / 10 }

func (a axes) vertical(format func(float64) string) (out []node) {
	for _, v := range a.values.ticks {
		y := a.y(v)
		out = append(out, line("grid", a.left, y, a.left+panelWidth, y), label(a.left-8, y+4, "end", format(v)))
	}
	return append(out, line("axis", a.left, top, a.left, top+panelHeight))
}

// tickRoom is what the label of a size takes.
const tickRoom = 44

func (a axes) horizontal(format func(float64) string, name string) []node {
	const bottom = top + panelHeight
	out := []node{line("axis", a.left, bottom, a.left+panelWidth, bottom)}
	last := math.Inf(-1)
	for _, size := range a.sizes.ticks {
		x := a.x(size)
		out = append(out, line("axis", x, bottom, x, bottom+4))
		if x-last >= tickRoom {
			out = append(out, label(x, bottom+18, "tick", format(size)))
			last = x
		}
	}
	return append(out, label(a.left+panelWidth/2, bottom+38, "tick", name))
}

// line draws a series in panel i. Each dot says what it stands for.
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
		dot := s.dot(x, y)
		dot.add(textElement("title", nil, s.Name+", "+c.Sizes(p.Size)+": "+c.Panels[i].Values(p.Value)))
		dots = append(dots, dot)
	}
	stroke["points"] = path.String()
	return append([]node{element("polyline", stroke)}, dots...)
}
