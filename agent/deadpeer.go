package agent

import (
	"time"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// silence is how long bytes may be on their way to a worker without a word that they came,
// before it counts as dead. It is as long as keepalive takes on a pipe on which nothing
// happens, which is of no use where calls are on their way.
const silence = 30 * time.Second

// newContext is tensorpipe.NewContext, with that bound for pipes over TCP: without it calls
// that have no limit of their own, and those that come later, would wait for as long as the
// kernel sends again, which is a quarter of an hour.
func newContext(o pipe.Options, silence time.Duration) (*pipe.Context, error) {
	p := tensorpipe.DefaultProfile()
	for i := range p.Transports {
		if p.Transports[i].Name == "uv" {
			p.Transports[i].Transport = uv.New(uv.WithUserTimeout(silence))
		}
	}
	o.Transports = p.Transports // and the lanes go over that
	return p.NewContext(o)
}
