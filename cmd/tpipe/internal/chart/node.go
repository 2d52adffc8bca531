package chart

import (
	"encoding/xml"
	"maps"
	"slices"
	"strconv"
)

// node is an element of the document.
type node struct {
	XMLName  xml.Name
	Attrs    []xml.Attr `xml:",any,attr"`
	Text     string     `xml:",chardata"`
	Children []node
}

type attrs map[string]string

func element(name string, a attrs) node {
	n := node{XMLName: xml.Name{Local: name}}
	for _, key := range slices.Sorted(maps.Keys(a)) {
		n.Attrs = append(n.Attrs, xml.Attr{Name: xml.Name{Local: key}, Value: a[key]})
	}
	return n
}

func textElement(name string, a attrs, text string) node {
	n := element(name, a)
	n.Text = text
	return n
}

func (n *node) add(children ...node) { n.Children = append(n.Children, children...) }

// label is text at a place.
func label(x, y float64, class, text string) node {
	return textElement("text", attrs{"x": number(x), "y": number(y), "class": class}, text)
}

func line(class string, x1, y1, x2, y2 float64) node {
	return element("line", attrs{"class": class, "x1": number(x1), "y1": number(y1), "x2": number(x2), "y2": number(y2)})
}

// number prints a coordinate.
func number(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
