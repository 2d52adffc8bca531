package tensorpipe_test

import (
	"bytes"
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/thirdparty"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/netconn"
)

// noSession is the reason in the plans of pipes over a transport without sessions.
const noSession = "its connections carry no session"

// ownTransport returns the default profile with a transport of the application's own, called own, of
// the highest priority or, if last is true, of the lowest. newConn makes its connections; nil stands
// for connections without optional interfaces.
func ownTransport(newConn func(net.Conn) transport.Conn, last bool) tensorpipe.Profile {
	p := tensorpipe.DefaultProfile()
	priority := 1000
	if last {
		priority = -1
	}
	p.Transports = append(p.Transports, pipe.TransportEntry{
		Name: "own", Priority: priority, Transport: thirdparty.Transport{NewConn: newConn},
	})
	return p
}

// openPipe is openPipeBetween for two contexts of the same profile p.
func openPipe(t *testing.T, p tensorpipe.Profile, o pipe.Options, transports ...string) (client, server *pipe.Pipe, err error) {
	t.Helper()
	return openPipeBetween(t, [2]tensorpipe.Profile{p, p}, o, transports...)
}

// openPipeBetween returns both ends of a pipe between two contexts with the options o: that of the
// listener, of the first profile in ends, and that of the client, of the second. The listener listens
// at a TCP port with each of the named transports. The URL of the last of these is dialled. The test
// closes the contexts when it ends. The error is that of Dial.
func openPipeBetween(
	t *testing.T, ends [2]tensorpipe.Profile, o pipe.Options, transports ...string,
) (client, server *pipe.Pipe, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var contexts [2]*pipe.Context
	for i, p := range ends {
		c, err := p.NewContext(o)
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		contexts[i] = c
	}
	var urls []string
	for _, name := range transports {
		urls = append(urls, name+"://127.0.0.1:0")
	}
	l, err := contexts[0].Listen(ctx, urls...)
	require.NoError(t, err)
	if client, err = contexts[1].Dial(ctx, l.URLs()[len(urls)-1]); err != nil {
		return nil, nil, err
	}
	server, err = l.Accept(ctx)
	require.NoError(t, err)
	return client, server, nil
}

// exchangeTensors sends a small and two large messages in each direction over the pipe with the ends
// one and other, and checks that they arrive.
func exchangeTensors(t *testing.T, one, other *pipe.Pipe) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, ends := range [][2]*pipe.Pipe{{one, other}, {other, one}} {
		for _, n := range []int{10, 1<<20 + 1, 1<<20 + 2} {
			data := bytes.Repeat([]byte{byte(n), 1, 2, 3, 5}, n/5)
			op := ends[0].WriteAsync(ctx, &pipe.Message{
				Payloads: []pipe.Payload{{Data: data}},
				Tensors:  []pipe.Tensor{{Buffer: device.Bytes(data)}},
			})
			in, err := ends[1].Next(ctx)
			require.NoError(t, err)
			a := pipe.NewAllocation(in.Descriptor())
			require.NoError(t, in.Read(ctx, a))
			require.NoError(t, op.Wait(ctx))
			require.True(t, bytes.Equal(data, a.Payloads[0]))
			got, _ := a.Tensors[0].Contiguous()
			require.True(t, bytes.Equal(data, got))
		}
	}
}

// refusal returns the reason for which plan does not use the candidate with this kind and name, or
// "" if there is none.
func refusal(plan *pipe.Plan, kind pipe.CandidateKind, name string) string {
	for _, r := range plan.Refused {
		if r.Kind == kind && r.Name == name {
			return r.Reason
		}
	}
	return ""
}

// TestOwnTransportWithoutSessions checks that a transport of the application's own that has only the
// required interface works beside the default profile, whichever URL is dialled. A pipe over it uses
// the compatible dialect, and both plans have the reason. A pipe that was dialled over it and uses
// another transport is not affected.
func TestOwnTransportWithoutSessions(t *testing.T) {
	for _, listens := range [][]string{{"own"}, {"uv", "own"}, {"own", "uv"}} {
		for _, last := range []bool{false, true} {
			for _, channels := range [][]string{nil, {"basic"}} {
				client, server, err := openPipe(t, ownTransport(nil, last),
					pipe.Options{Policy: pipe.Policy{Channels: pipe.Rule{Require: channels}}}, listens...)
				require.NoError(t, err)
				for _, p := range []*pipe.Pipe{client, server} {
					if last && len(listens) > 1 {
						require.Equal(t, "uv", p.Plan().Transport)
						require.Equal(t, pipe.DialectNative, p.Plan().Dialect)
						continue
					}
					require.Equal(t, "own", p.Plan().Transport)
					require.Equal(t, pipe.DialectCompatible, p.Plan().Dialect)
					require.Contains(t, refusal(p.Plan(), pipe.CandidateDialect, "native"), "transport own: ")
					require.Contains(t, refusal(p.Plan(), pipe.CandidateDialect, "native"), noSession)
				}
				exchangeTensors(t, client, server)
			}
		}
	}
}

// TestOwnTransportNativeRequired checks that a pipe that requires the native dialect skips a
// transport without sessions: it uses the next transport, and both plans have the reason. Without
// another transport Dial fails with the reason.
func TestOwnTransportNativeRequired(t *testing.T) {
	native := pipe.Options{Dialect: pipe.DialectNative}
	for _, listens := range [][]string{{"uv", "own"}, {"own", "uv"}} {
		client, server, err := openPipe(t, ownTransport(nil, false), native, listens...)
		require.NoError(t, err)
		for _, p := range []*pipe.Pipe{client, server} {
			require.Equal(t, "uv", p.Plan().Transport)
			require.Contains(t, refusal(p.Plan(), pipe.CandidateTransport, "own"), "native is required, and ")
			require.Contains(t, refusal(p.Plan(), pipe.CandidateTransport, "own"), noSession)
		}
		exchangeTensors(t, client, server)
	}
	_, _, err := openPipe(t, ownTransport(nil, false), native, "own")
	require.ErrorIs(t, err, pipe.ErrDialect)
	require.ErrorContains(t, err, "transport own: "+noSession)
}

// overNetconn makes connections with the public helper, which have sessions and raw streams.
func overNetconn(c net.Conn) transport.Conn { return netconn.New(c.(*net.TCPConn)) }

// noStream is a connection with sessions but without a raw stream.
type noStream struct{ *netconn.Conn }

func (noStream) Stream() (transport.Stream, error) { return nil, transport.ErrNotSupported }

// declined is a connection of a type with sessions that cannot carry one itself.
type declined struct{ *netconn.Conn }

func (declined) PrepareSession(transport.SessionConfig) error { return transport.ErrNotSupported }

// TestOwnTransportWithSessions checks that a pipe over a transport whose connections the public
// helper makes uses the native dialect. If the connections have no raw stream, large tensors move
// over a stream of the session.
func TestOwnTransportWithSessions(t *testing.T) {
	for name, newConn := range map[string]func(net.Conn) transport.Conn{
		"helper":        overNetconn,
		"no raw stream": func(c net.Conn) transport.Conn { return noStream{netconn.New(c.(*net.TCPConn))} },
	} {
		for _, listens := range [][]string{{"own"}, {"uv", "own"}, {"own", "uv"}} {
			for _, channels := range [][]string{nil, {"basic"}} {
				client, server, err := openPipe(t, ownTransport(newConn, false),
					pipe.Options{Policy: pipe.Policy{Channels: pipe.Rule{Require: channels}}}, listens...)
				require.NoError(t, err, name)
				for _, p := range []*pipe.Pipe{client, server} {
					require.Equal(t, "own", p.Plan().Transport)
					require.Equal(t, pipe.DialectNative, p.Plan().Dialect, name)
				}
				exchangeTensors(t, client, server)
			}
		}
	}
}

// TestOwnTransportDeclinesSession checks that a connection that implements transport.Multiplexer, but
// cannot carry a session, is used as one without sessions.
func TestOwnTransportDeclinesSession(t *testing.T) {
	newConn := func(c net.Conn) transport.Conn { return declined{netconn.New(c.(*net.TCPConn))} }
	client, server, err := openPipe(t, ownTransport(newConn, false), pipe.Options{}, "own")
	require.NoError(t, err)
	for _, p := range []*pipe.Pipe{client, server} {
		require.Equal(t, pipe.DialectCompatible, p.Plan().Dialect)
		require.Contains(t, refusal(p.Plan(), pipe.CandidateDialect, "native"), noSession)
	}
	exchangeTensors(t, client, server)

	client, _, err = openPipe(t, ownTransport(newConn, false), pipe.Options{}, "own", "uv")
	require.NoError(t, err)
	require.Equal(t, "uv", client.Plan().Transport)
	require.Contains(t, refusal(client.Plan(), pipe.CandidateTransport, "own"), noSession)
}

// TestOwnTransportAtOneEnd checks that no end fails if the connections of only one end carry no
// session, whichever end that is. The pipe uses the compatible dialect or, if it was dialled over
// another transport, that one; the client's plan has the reason.
func TestOwnTransportAtOneEnd(t *testing.T) {
	with, without := ownTransport(overNetconn, false), ownTransport(nil, false)
	for _, ends := range [][2]tensorpipe.Profile{{with, without}, {without, with}} {
		for _, listens := range [][]string{{"own"}, {"own", "uv"}} {
			client, server, err := openPipeBetween(t, ends, pipe.Options{}, listens...)
			require.NoError(t, err)
			plan := client.Plan()
			if plan.Transport == "own" {
				require.Equal(t, pipe.DialectCompatible, plan.Dialect)
				require.Contains(t, refusal(plan, pipe.CandidateDialect, "native"), noSession)
			} else {
				require.Equal(t, pipe.DialectNative, plan.Dialect)
				require.Contains(t, refusal(plan, pipe.CandidateTransport, "own"), noSession)
			}
			exchangeTensors(t, client, server)
		}
	}
}
