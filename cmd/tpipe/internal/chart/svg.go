package chart

import (
	"encoding/xml"
	"maps"
	"slices"
	"strconv"
)

// node is an element of the SVG document.
type node struct {
	XMLName  xml.Name
	Attrs    []xml.Attr `xml:",any,attr"`
	Text     string     `xml:",chardata"`
	Children []node
}

type attrs map[string]string

// element returns an SVG element with that name and the attributes in a, ordered by their names. It
// has no children and no text. a is not kept.
func element(name string, a attrs) node {
	n := node{XMLName: xml.Name{Local: name}}
	for _, key := range slices.Sorted(maps.Keys(a)) {
		n.Attrs = append(n.Attrs, xml.Attr{Name: xml.Name{Local: key}, Value: a[key]})
	}
	return n
}

// textElement returns an SVG element with that name, the attributes in a and the content text,
// which is escaped when the chart is written.
func textElement(name string, a attrs, text string) node {
	n := element(name, a)
	n.Text = text
	return n
}

// add appends children to the child elements of n, in order.
func (n *node) add(children ...node) { n.Children = append(n.Children, children...) }

// move shifts n by x to the right and by y down. n must not have been moved before.
func (n *node) move(x, y float64) {
	value := "translate(" + number(x) + "," + number(y) + ")"
	n.Attrs = append(n.Attrs, xml.Attr{Name: xml.Name{Local: "transform"}, Value: value})
}

// label returns an SVG element with the given text at the position x, y. Its class attribute, which
// selects the style, is class.
func label(x, y float64, class, text string) node {
	return textElement("text", attrs{"x": number(x), "y": number(y), "class": class}, text)
}

// line returns an SVG line from x1, y1 to x2, y2. Its class attribute, which selects the style, is
// class.
func line(class string, x1, y1, x2, y2 float64) node {
	return element("line", attrs{"class": class, "x1": number(x1), "y1": number(y1), "x2": number(x2), "y2": number(y2)})
}

// number returns v as decimal text, without an exponent and with as few digits as are exact.
func number(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// style is the style sheet with the colours of the light and the dark scheme. The background is drawn
// too, so that the chart is readable in viewers that report no scheme.
const style = `
text { font: 12px system-ui, sans-serif; fill: #24292f }
.head { font-size: 16px; font-weight: 600 }
.panel { font-size: 13px; font-weight: 600 }
.note, .tick { fill: #57606a }
.tick, .middle { text-anchor: middle }
.end { text-anchor: end; fill: #57606a }
.paper, .hollow { fill: #ffffff }
.grid { stroke: #d8dee4; stroke-width: 1 }
.axis { stroke: #57606a; stroke-width: 1 }
.line { fill: none; stroke-width: 2; stroke-linejoin: round }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.note, .tick, .end { fill: #9198a1 }
.paper, .hollow { fill: #0d1117 }
.grid { stroke: #2a313c }
.axis { stroke: #9198a1 }
}
`

// hues are colours that differ on light and dark backgrounds and for viewers with colour
// blindness.
var hues = []string{"#2f81d6", "#e07b00", "#1f9e6e", "#a65fd0", "#d64545", "#14a0b8", "#a07a2c", "#d85a9b"}

const grey = "#8b949e"

// dots are the patterns of grey lines.
var dots = []string{"2 4", "8 3 2 3", "1 7", "12 4"}

// colour returns the colour of the series in hexadecimal, such as "#8b949e": grey for a Bound, and
// otherwise one of eight that s.Hue selects.
func (s Series) colour() string {
	if s.Kind == Bound {
		return grey
	}
	return hues[s.Hue%len(hues)]
}

// stroke returns the SVG attributes of the lines of the series, its colour and its pattern of
// dashes, in a new map that the caller may change.
func (s Series) stroke() attrs {
	a := attrs{"class": "line", "stroke": s.colour()}
	switch s.Kind {
	case Peer:
		a["stroke-dasharray"] = "7 4"
	case Bound:
		a["stroke-dasharray"] = dots[s.Hue%len(dots)]
	}
	return a
}

// dot returns an SVG circle that marks a point of the series at the position x, y. Its size and
// filling depend on s.Kind.
func (s Series) dot(x, y float64) node {
	a := attrs{"cx": number(x), "cy": number(y), "r": "3.5"}
	switch s.Kind {
	case Ours, Curve:
		a["fill"] = s.colour()
	case Peer:
		a["class"], a["stroke"], a["stroke-width"] = "hollow", s.colour(), "1.5"
	case Bound:
		a["r"], a["fill"] = "2", s.colour()
	}
	return element("circle", a)
}
