package channeltest_test

import (
	"context"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/internal/framed"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// A channel of the native dialect gets streams of a session, as from a pipe, and
// none of the transport's connections.
func TestNativeChannelsGetStreams(t *testing.T) {
	seen := &onlooker{t: t}
	channeltest.Run(t, channeltest.Backend{
		Name:         xth.Name,
		New:          func(*testing.T) channel.Factory { return watchedFactory{xth.New(), seen} },
		Connect:      seen.note(channeltest.Over(mem.New(nil), "")),
		SkipsAborted: true,
	})
	require.Positive(t, seen.streams)
}

// onlooker knows the connections of a transport.
type onlooker struct {
	t *testing.T

	mu      sync.Mutex
	conns   []transport.Conn
	streams int // that channels got
}

func (o *onlooker) note(connect channeltest.Connect) channeltest.Connect {
	return func(t testing.TB) (one, other transport.Conn) {
		one, other = connect(t)
		o.mu.Lock()
		defer o.mu.Unlock()
		o.conns = append(o.conns, one, other)
		return one, other
	}
}

// look counts the streams among what a channel of the native dialect got.
func (o *onlooker) look(got []transport.Conn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range got {
		if slices.Contains(o.conns, c) {
			o.t.Errorf("a channel got a connection of the transport")
		}
		if reflect.TypeOf(c) == reflect.TypeOf(framed.Over(nil)) {
			o.streams++
		}
	}
}

type watchedFactory struct {
	xth.Factory
	seen *onlooker
}

func (f watchedFactory) New(ctx context.Context, link channel.Link, role channel.Role) (channel.Channel, error) {
	if link.Native {
		f.seen.look(link.Conns)
	}
	return f.Factory.New(ctx, link, role)
}
