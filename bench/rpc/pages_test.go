package rpc

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	cryptorand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// certificate writes a new certificate for 127.0.0.1 and its key to a file and returns its name.
func certificate(t testing.TB) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), cryptorand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	public, err := x509.CreateCertificate(cryptorand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	both := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: public})
	both = append(both, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})...)
	file := t.TempDir() + "/pair.pem"
	require.NoError(t, os.WriteFile(file, both, 0o600))
	return file
}

// pageFetcher fetches pages of worker1 into a pool, by a call, by a plain net.Conn and by a pipe.
type pageFetcher struct {
	agent *agent.Agent
	plain net.Conn
	pipe  *pipe.Pipe
	pool  *tensor.Tensor
	bytes []byte // of the pool
}

// newPageFetcher starts worker1 and connects to it, over the path p only.
func newPageFetcher(t testing.TB, p pagePath) *pageFetcher {
	t.Helper()
	t.Setenv(envPages, p.name)
	t.Setenv(envCert, certificate(t))
	f := &pageFetcher{agent: group(t, 2, p.listen)}
	address, err := PlainPages.Call(t.Context(), f.agent, "worker1", agent.None{})
	require.NoError(t, err)
	f.plain, err = net.Dial(p.network, address)
	require.NoError(t, err)
	var config *tls.Config
	if p.tls {
		config, err = mutualTLS(os.Getenv(envCert))
		require.NoError(t, err)
		f.plain = tls.Client(f.plain, config)
	}
	t.Cleanup(func() { _ = f.plain.Close() })
	url, err := PipePages.Call(t.Context(), f.agent, "worker1", agent.None{})
	require.NoError(t, err)
	c, err := p.newContext(pipe.Options{Name: "fetcher"}, config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	f.pipe, err = c.Dial(t.Context(), url)
	require.NoError(t, err)
	f.pool, err = tensor.Zeros(tensor.U8, poolPages, pageBytes)
	require.NoError(t, err)
	f.bytes, err = tensor.MutableData[uint8](f.pool)
	require.NoError(t, err)
	return f
}

// byCall fetches the pages with the numbers from to the places to of the pool by a call.
func (f *pageFetcher) byCall(ctx context.Context, from, to []int) error {
	into, err := pagesOf(f.pool, to)
	if err != nil {
		return err
	}
	_, err = Fetch.Call(ctx, f.agent, "worker1", from, agent.WithInto(into...))
	return err
}

// byPipe returns a function that fetches random pages to random places by one message in this form.
func (f *pageFetcher) byPipe(form pageForm) func(context.Context) error {
	return func(ctx context.Context) error { return fetchPipe(ctx, f.pipe, form, f.bytes, random(), random()) }
}

// random returns fetchPages different numbers of pages, in any order.
func random() []int { return rand.Perm(poolPages)[:fetchPages] }

// TestPages tests that the calls, the plain net.Conn and the pipe of BenchmarkPages fetch the right
// pages to the right places, over each path.
func TestPages(t *testing.T) {
	for _, p := range pagePaths {
		t.Run(p.name, func(t *testing.T) {
			f := newPageFetcher(t, p)
			for name, fetch := range map[string]func(from, to []int) error{
				"call":  func(from, to []int) error { return f.byCall(t.Context(), from, to) },
				"plain": func(from, to []int) error { return fetchPlain(f.plain, f.bytes, from, to) },
				"tensors": func(from, to []int) error {
					return fetchPipe(t.Context(), f.pipe, asTensors, f.bytes, from, to)
				},
				"segments": func(from, to []int) error {
					return fetchPipe(t.Context(), f.pipe, asSegments, f.bytes, from, to)
				},
			} {
				clear(f.bytes)
				from, to := random(), random()
				require.NoError(t, fetch(from, to), name)
				for i, n := range to {
					page := f.bytes[n*pageBytes : (n+1)*pageBytes]
					require.Equal(t, pageBytes, bytes.Count(page, []byte{byte(from[i])}), name)
				}
			}
		})
	}
}

// pagePairs is the number of pairs of runs of BenchmarkPages, and pageFetches the number of fetches
// of each run.
const pagePairs, pageFetches = 9, 20

// BenchmarkPages measures calls that fetch 64 random pages of 256 KiB into random places of a pool,
// alternately with a loop over a plain net.Conn that does the same, in nine pairs of 20 fetches
// each. In the same way it measures messages of a pipe with 64 tensors and with one tensor of 64
// segments, one after the other. It reports the median rates, the median of the ratio of the call's
// rate to the loop's and of the time of tensors to that of segments, and the limits of the 95 %
// intervals of these medians: the second smallest and the second largest of nine.
func BenchmarkPages(b *testing.B) {
	for _, p := range pagePaths {
		b.Run("transport="+p.name, func(b *testing.B) {
			f := newPageFetcher(b, p)
			call := func(ctx context.Context) error { return f.byCall(ctx, random(), random()) }
			plain := func(context.Context) error { return fetchPlain(f.plain, f.bytes, random(), random()) }
			tensors, segments := f.byPipe(asTensors), f.byPipe(asSegments)
			for b.Loop() {
				s := samples{}
				for range pagePairs {
					called, err := Sequential(b.Context(), 2, pageFetches, call)
					require.NoError(b, err)
					looped, err := Sequential(b.Context(), 2, pageFetches, plain)
					require.NoError(b, err)
					s.add("GB/s", fetchPages*pageBytes*called.PerSecond/1e9)
					s.add("plain-GB/s", fetchPages*pageBytes*looped.PerSecond/1e9)
					s.add("of-plain", called.PerSecond/looped.PerSecond)
					took, err := alternate(b.Context(), 2, pageFetches, tensors, segments)
					require.NoError(b, err)
					s.add("segments-GB/s", fetchPages*pageBytes*pageFetches/float64(took[1].Nanoseconds()))
					s.add("of-segments", float64(took[0])/float64(took[1]))
				}
				for name, v := range s {
					b.ReportMetric(median(v), name)
					if strings.HasPrefix(name, "of-") {
						b.ReportMetric(v[1], name+"-low") // median has sorted them
						b.ReportMetric(v[len(v)-2], name+"-high")
					}
				}
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}
