package pipe

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// The dialects, by which a pipe's ends may talk to each other.
const (
	// DialectCompatible is TensorPipe's own wire protocol, which C++ peers
	// speak.
	DialectCompatible = "compatible"

	// DialectNative is the one between two ends of this library.
	DialectNative = "native"

	// DialectAuto, in Options, is the native dialect with a peer that knows it,
	// and the compatible one with any other.
	DialectAuto = "auto"
)

// Plan is the path that the two ends of a pipe agreed on, as plain data: it can
// be printed, logged and compared.
type Plan struct {
	Dialect   string           `json:"dialect"`
	Transport string           `json:"transport"`
	Channels  []PlannedChannel `json:"channels"` // ordered by local, then remote device
	Refused   []Refusal        `json:"refused"`  // what was not chosen, and why, best first

	// Inline is up to how many bytes a tensor or payload in host memory travels
	// inside its message, without a channel: 0 in the compatible dialect.
	Inline int `json:"inline,omitempty"`
}

// PlannedChannel names the channel that moves tensors between two devices. Where
// sizes matter a pair of devices has several: first that of the largest tensors,
// then those of smaller ones.
type PlannedChannel struct {
	Local   device.Device `json:"local"`
	Remote  device.Device `json:"remote"`
	Channel string        `json:"channel"`

	// Below, if it is not 0, is that only tensors of fewer bytes take the channel.
	Below int `json:"below,omitempty"`
}

// Refusal says why a dialect, transport or channel is not used.
type Refusal struct {
	What   string `json:"what"` // "dialect", "transport" or "channel"
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

func (r Refusal) String() string { return r.What + " " + r.Name + ": " + r.Reason }

// Channel returns the name of the channel from the local to the remote device,
// that of the largest tensors.
func (p *Plan) Channel(local, remote device.Device) (string, bool) {
	c, ok := find(p.Channels, func(c PlannedChannel) bool { return c.Local == local && c.Remote == remote })
	return c.Channel, ok
}

// Equal reports whether two plans choose and refuse the same.
func (p *Plan) Equal(q *Plan) bool {
	return p.Dialect == q.Dialect && p.Transport == q.Transport && p.Inline == q.Inline &&
		slices.Equal(p.Channels, q.Channels) && slices.Equal(p.Refused, q.Refused)
}

// String prints the plan as a table of a few lines.
func (p *Plan) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "dialect\t%s\n", p.Dialect)
	fmt.Fprintf(w, "transport\t%s\n", p.Transport)
	if p.Inline > 0 {
		fmt.Fprintf(w, "up to %d bytes\tinside the message\n", p.Inline)
	}
	for _, c := range p.Channels {
		fmt.Fprintf(w, "%s to %s\t%s\n", c.Local, c.Remote, c.text())
	}
	if len(p.Channels) == 0 {
		fmt.Fprintf(w, "tensors\tno common channel\n")
	}
	for _, r := range p.Refused {
		fmt.Fprintf(w, "not %s %s\t%s\n", r.What, r.Name, r.Reason)
	}
	w.Flush()
	return b.String()
}

func (c PlannedChannel) text() string {
	if c.Below == 0 {
		return c.Channel
	}
	return fmt.Sprintf("%s below %d bytes", c.Channel, c.Below)
}

// comparePairs orders device pairs for printing.
func comparePairs(a, b devicePair) int {
	return cmp.Or(compareDevices(a.local, b.local), compareDevices(a.remote, b.remote))
}

func compareDevices(a, b device.Device) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Index, b.Index))
}
