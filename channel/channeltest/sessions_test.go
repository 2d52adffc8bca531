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

// In the native dialect the suite gives channels streams of a session, and never a connection of
// the transport itself.
func TestNativeChannelsGetStreams(t *testing.T) {
	recorder := &connRecorder{t: t}
	channeltest.Run(t, channeltest.Backend{
		Name:         xth.Name,
		New:          func(*testing.T) channel.Factory { return recordingFactory{xth.New(), recorder} },
		Connect:      recorder.record(channeltest.Over(mem.New(nil), "")),
		SkipsAborted: true,
	})
	require.Positive(t, recorder.streams)
}

// connRecorder records the connections of a transport.
type connRecorder struct {
	t *testing.T

	mu      sync.Mutex
	conns   []transport.Conn
	streams int // that channels were given
}

func (o *connRecorder) record(connect channeltest.Connect) channeltest.Connect {
	return func(t testing.TB) (one, other transport.Conn) {
		one, other = connect(t)
		o.mu.Lock()
		defer o.mu.Unlock()
		o.conns = append(o.conns, one, other)
		return one, other
	}
}

// countStreams adds the number of session streams among got, the connections that a native channel
// was given, to o.streams. It fails the test if got contains a connection of the transport itself.
func (o *connRecorder) countStreams(got []transport.Conn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range got {
		if slices.Contains(o.conns, c) {
			o.t.Errorf("a channel was given a connection of the transport")
		}
		if reflect.TypeOf(c) == reflect.TypeOf(framed.OverStream(nil)) {
			o.streams++
		}
	}
}

type recordingFactory struct {
	xth.Factory
	recorder *connRecorder
}

func (f recordingFactory) New(ctx context.Context, link channel.Link, role channel.Role) (channel.Channel, error) {
	if link.Native {
		f.recorder.countStreams(link.Conns)
	}
	return f.Factory.New(ctx, link, role)
}
