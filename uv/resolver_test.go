package uv_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/uv"
)

// resolver returns a resolver that answers every query for IPv4 addresses with ips, in that order,
// and every other query with no address. It uses no network.
func resolver(t *testing.T, ips ...string) *net.Resolver {
	var servers sync.WaitGroup
	t.Cleanup(servers.Wait)
	return &net.Resolver{
		PreferGo: true,
		Dial: func(context.Context, string, string) (net.Conn, error) {
			client, server := net.Pipe()
			servers.Go(func() {
				defer server.Close()
				answerDNS(server, ips)
			})
			return client, nil
		},
	}
}

// answerDNS reads DNS queries from c, each preceded by its length in two bytes, and answers each in
// the same form with dnsReply. It returns when reading or writing fails.
func answerDNS(c net.Conn, ips []string) {
	for {
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(c, query); err != nil {
			return
		}
		reply := dnsReply(query, ips)
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...)); err != nil {
			return
		}
	}
}

// dnsReply returns a DNS reply to query, which has one question: a record for each of ips if the
// question is about IPv4 addresses, and otherwise no record.
func dnsReply(query []byte, ips []string) []byte {
	const header, typeA = 12, 1
	end := header
	for query[end] != 0 {
		end += 1 + int(query[end])
	}
	question := query[header : end+5]
	if binary.BigEndian.Uint16(query[end+1:]) != typeA {
		ips = nil
	}
	reply := append([]byte{query[0], query[1], 0x81, 0x80, 0, 1, 0, byte(len(ips)), 0, 0, 0, 0}, question...)
	for _, ip := range ips {
		reply = append(reply, 0xc0, header, 0, typeA, 0, 1, 0, 0, 0, 60, 0, 4)
		reply = append(reply, net.ParseIP(ip).To4()...)
	}
	return reply
}

// 203.0.113.0/24 is for documentation: no machine has an address from there.
const nobody = "203.0.113.1"

func TestListenTriesAllAddresses(t *testing.T) {
	tr := uv.New(uv.WithResolver(resolver(t, nobody, "127.0.0.1")))
	l := listen(t, tr, "somewhere.example:0")
	a, err := uv.ParseAddr(l.Addr())
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1", a.Host)

	tr = uv.New(uv.WithResolver(resolver(t, nobody)))
	_, err = tr.Listen(t.Context(), "somewhere.example:0")
	require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
	require.ErrorContains(t, err, "somewhere.example:0")
	require.ErrorContains(t, err, nobody)
}

// TestDialTriesAllAddresses checks that Dial reaches a listener if the host name resolves to two
// addresses of which only the second one has a listener.
func TestDialTriesAllAddresses(t *testing.T) {
	l := listen(t, uv.New(), "127.0.0.1")
	a, err := uv.ParseAddr(l.Addr())
	require.NoError(t, err)
	tr := uv.New(uv.WithResolver(resolver(t, "127.0.0.2", "127.0.0.1")))
	a.Host = "somewhere.example"
	dialled, _ := connect(t, tr, l, a.String())
	require.Equal(t, l.Addr(), dialled.RemoteAddr())
}

func TestUnknownHost(t *testing.T) {
	tr := uv.New(uv.WithResolver(resolver(t)))
	_, err := tr.Dial(t.Context(), "nowhere.example:5")
	var cause *net.DNSError
	require.ErrorAs(t, err, &cause)
	require.True(t, cause.IsNotFound)
	require.ErrorContains(t, err, "nowhere.example:5")
	_, err = tr.Listen(t.Context(), "nowhere.example:5")
	require.ErrorAs(t, err, &cause)
	require.ErrorContains(t, err, "nowhere.example:5")
}

// TestCancelledLookup checks that Dial and Listen return when their context is cancelled while they
// wait for a name server that never answers.
func TestCancelledLookup(t *testing.T) {
	asked := make(chan struct{}, 16)
	tr := uv.New(uv.WithResolver(&net.Resolver{
		PreferGo: true,
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			asked <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		},
	}))
	for name, call := range map[string]func(context.Context) error{
		"dial": func(ctx context.Context) error {
			_, err := tr.Dial(ctx, "slow.example:5")
			return err
		},
		"listen": func(ctx context.Context) error {
			_, err := tr.Listen(ctx, "slow.example:5")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			failed := make(chan error, 1)
			go func() { failed <- call(ctx) }()
			<-asked
			cancel()
			err := <-failed
			require.True(t, errors.Is(err, context.Canceled), "%v", err)
		})
	}
}
