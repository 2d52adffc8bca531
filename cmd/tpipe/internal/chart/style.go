package chart

// style has the colours for both schemes. The paper is drawn, so that the chart
// can be read wherever the viewer does not say which scheme it has.
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

// hues are told apart on light and on dark paper, and by those who see few
// colours.
var hues = []string{"#2f81d6", "#e07b00", "#1f9e6e", "#a65fd0", "#d64545", "#14a0b8", "#a07a2c", "#d85a9b"}

const grey = "#8b949e"

// dots tell grey lines apart.
var dots = []string{"2 4", "8 3 2 3", "1 7", "12 4"}

func (s Series) colour() string {
	if s.Kind == Bound {
		return grey
	}
	return hues[s.Hue%len(hues)]
}

// stroke has what makes the line of a series.
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

// dot is the mark of a value.
func (s Series) dot(x, y float64) node {
	a := attrs{"cx": number(x), "cy": number(y), "r": "3.5"}
	switch s.Kind {
	case Ours:
		a["fill"] = s.colour()
	case Peer:
		a["class"], a["stroke"], a["stroke-width"] = "hollow", s.colour(), "1.5"
	case Bound:
		a["r"], a["fill"] = "2", s.colour()
	}
	return element("circle", a)
}
