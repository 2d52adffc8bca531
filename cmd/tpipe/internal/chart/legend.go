package chart

// legend is the list of what the lines stand for, below the panels.
type legend struct {
	group  node
	height float64
}

func (c *Chart) legend(width float64) legend {
	columns := max(int((width-marginLeft)/legendWidth), 1)
	g := element("g", nil)
	for i, s := range c.Series {
		x := marginLeft + float64(i%columns)*legendWidth
		y := top + panelHeight + below + float64(i/columns)*legendRow
		sample := s.stroke()
		sample["points"] = number(x) + "," + number(y) + " " + number(x+36) + "," + number(y)
		g.add(element("polyline", sample), s.dot(x+18, y))
		g.add(label(x+46, y+4, "entry", s.Name))
	}
	rows := (len(c.Series) + columns - 1) / columns
	return legend{g, float64(rows) * legendRow}
}
