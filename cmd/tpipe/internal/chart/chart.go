// Package chart draws values over sizes as SVG: panels in rows with a common legend.
// The result is one file without scripts, whose colours follow the light or dark scheme of the
// viewer.
package chart

import (
	"encoding/xml"
	"io"
	"strings"
)

// Chart is a chart of one or more panels. Their common horizontal axis is logarithmic and shows
// sizes; size 0 is at its left end. With Linear it is linear, and begins at 0.
type Chart struct {
	Title  string
	Note   string                    // below the title, in one line
	Size   string                    // label of the horizontal axis, with the unit
	Sizes  func(size float64) string // labels of its ticks
	Linear bool                      // the horizontal axis is linear
	Panels []Panel
	Series []Series

	Columns int // panels in a row; 0: all
}

// Panel is one of the diagrams of a Chart: a pair of axes with the lines of all series.
type Panel struct {
	Title  string
	Values func(value float64) string // labels of the vertical ticks, with the unit
	Log    bool                       // the vertical axis is logarithmic, else it begins at 0
}

// Series is one entry of the legend, with at most one line in each panel of the chart.
type Series struct {
	Name  string // in the legend
	Hue   int    // number of a colour, or of the pattern of a Bound; equal for related series
	Kind  Kind
	Lines [][]Point // of the panels, in their order
}

// Kind is the role of a series, which selects the style of its lines.
type Kind int

// The kinds of series.
const (
	Ours  Kind = iota // solid, with full dots
	Peer              // dashed, with hollow dots
	Bound             // dotted and grey, with small dots: a limit for comparison
	Curve             // solid, without dots, for many points
)

// Point is a value at a size.
type Point struct{ Size, Value float64 }

// WriteTo writes the chart to w as an SVG document and returns the number of bytes written. It
// omits points that cannot be drawn: those with a negative or not finite size or value, and those
// with the value 0 on a logarithmic axis. The error is that of w.
func (c *Chart) WriteTo(w io.Writer) (int64, error) {
	text, err := xml.MarshalIndent(c.draw(), "", " ")
	if err != nil {
		return 0, err
	}
	n, err := w.Write(append(text, '\n'))
	return int64(n), err
}

// Dimensions of the drawing, in SVG user units.
const (
	panelWidth  = 430.0 // of the axes
	panelHeight = 300.0
	marginLeft  = 80.0 // of a panel, for the labels of its vertical axis
	marginRight = 30.0
	top         = 92.0 // where the panels begin
	below       = 66.0 // for ticks and label of the horizontal axis
	rowGap      = 30.0 // between two rows of panels, for the titles of the lower one
	legendRow   = 20.0
	legendWidth = 330.0 // of one entry
)

// draw returns the SVG element of the whole chart: the title, the note, all panels and the legend.
func (c *Chart) draw() node {
	columns := len(c.Panels)
	if c.Columns > 0 {
		columns = min(columns, c.Columns)
	}
	const rowHeight = panelHeight + below + rowGap
	rows := (len(c.Panels) + max(columns, 1) - 1) / max(columns, 1)
	lower := float64(max(rows-1, 0)) * rowHeight // height of all rows but the first
	width := float64(columns) * (marginLeft + panelWidth + marginRight)
	entries := c.legend(width, lower)
	height := top + panelHeight + below + lower + entries.height
	svg := element("svg", attrs{"xmlns": "http://www.w3.org/2000/svg", "viewBox": "0 0 " + number(width) + " " + number(height),
		"width": number(width), "height": number(height), "role": "img"})
	svg.add(
		textElement("title", nil, c.Title), textElement("style", nil, strings.Join(strings.Fields(style), " ")),
		element("rect", attrs{"class": "paper", "width": "100%", "height": "100%"}),
		label(marginLeft, 30, "head", c.Title), label(marginLeft, 50, "note", c.Note),
	)
	for i := range c.Panels {
		left := float64(i%columns)*(marginLeft+panelWidth+marginRight) + marginLeft
		panel := c.panel(i, left)
		if row := i / columns; row > 0 {
			panel.move(0, float64(row)*rowHeight)
		}
		svg.add(panel)
	}
	svg.add(entries.group)
	return svg
}
