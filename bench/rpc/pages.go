package rpc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// The pages of a pool: fetchPages of them are fetched at once.
const pageBytes, poolPages, fetchPages = 256 << 10, 256, 64

var (
	// Fetch returns views of the pages with the given numbers.
	Fetch = agent.NewFunc[[]int, []*tensor.Tensor]("bench.fetch")

	// PlainPages returns the address at which the worker serves the same pages over a plain net.Conn.
	PlainPages = agent.NewFunc[agent.None, string]("bench.plainpages")

	// PipePages returns the URL at which the worker serves the same pages over a pipe.
	PipePages = agent.NewFunc[agent.None, string]("bench.pipepages")
)

// pagePath is a path of the comparison with a plain net.Conn: the network of that, whether it has
// TLS, the URL at which the workers listen, and whether they use the channel basic only.
type pagePath struct {
	name, network, address, listen string
	tls, basic                     bool
}

// pagePaths are the paths of the comparison. Within a host a Unix socket is the fastest net.Conn.
// Of the paths through shared memory, shm has the default channels and ring only the ring.
var pagePaths = []pagePath{
	{"shm", "unix", "", "shm://", false, false},
	{"ring", "unix", "", "shm://", false, true},
	{"tcp", "tcp", "127.0.0.1:0", overTCP, false, true},
	{"tls", "tcp", "127.0.0.1:0", overTCP, true, true},
}

// newContext makes a pipe context from o with the transports and the channels of the path p. config
// is the TLS configuration of both ends, nil for none. The error is that of package pipe.
func (p pagePath) newContext(o pipe.Options, config *tls.Config) (*pipe.Context, error) {
	if p.basic {
		o.Channels = []pipe.ChannelEntry{{Name: basic.Name, Factory: basic.New()}}
	}
	if p.network == "tcp" {
		var options []uv.Option
		if config != nil {
			options = append(options, uv.WithTLS(config, config))
		}
		o.Transports = []pipe.TransportEntry{{Name: "uv", Transport: uv.New(options...)}}
	}
	return tensorpipe.NewContext(o)
}

// overTCP is the listening address of workers that use TCP only.
const overTCP = "uv://127.0.0.1:0"

// Environment variables that make the workers of a group serve pages over the named path, with the
// certificate and the key in the file of envCert.
const (
	envPages = "TENSORPIPE_BENCH_PAGES"
	envCert  = "TENSORPIPE_BENCH_CERT"
)

// pageServer serves the pages of a pool to agents, over pipes and over plain net.Conns.
type pageServer struct {
	path     pagePath
	tls      *tls.Config // nil without TLS
	pool     *tensor.Tensor
	bytes    []byte // of the pool
	listener net.Listener
	context  *pipe.Context
	pipes    *pipe.Listener
	work     sync.WaitGroup
}

// newPageServer returns the server for the path that the environment names, or nil if it names none.
// The caller must call close. The error is that of a listener or of the file of envCert.
func newPageServer() (*pageServer, error) {
	i := slices.IndexFunc(pagePaths, func(p pagePath) bool { return p.name == os.Getenv(envPages) })
	if i < 0 {
		return nil, nil
	}
	s := &pageServer{path: pagePaths[i]}
	var err error
	if s.path.tls {
		if s.tls, err = mutualTLS(os.Getenv(envCert)); err != nil {
			return nil, err
		}
	}
	if s.pool, err = tensor.Zeros(tensor.U8, poolPages, pageBytes); err != nil {
		return nil, err
	}
	if s.bytes, err = tensor.MutableData[uint8](s.pool); err != nil {
		return nil, err
	}
	for i := range s.bytes {
		s.bytes[i] = byte(i / pageBytes) // the number of the page
	}
	if s.listener, err = net.Listen(s.path.network, s.path.address); err != nil {
		return nil, err
	}
	if s.tls != nil {
		s.listener = tls.NewListener(s.listener, s.tls)
	}
	s.work.Go(s.accept)
	if s.context, err = s.path.newContext(pipe.Options{Name: "pages"}, s.tls); err != nil {
		return nil, errors.Join(err, s.listener.Close())
	}
	if s.pipes, err = s.context.Listen(context.Background(), s.path.listen); err != nil {
		return nil, errors.Join(err, s.listener.Close(), s.context.Close())
	}
	s.work.Go(s.acceptPipes)
	return s, nil
}

// mutualTLS returns a configuration for both ends with the certificate and the key in a PEM file,
// which trusts only that certificate. The error is that of the file.
func mutualTLS(file string) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(file, file)
	if err != nil {
		return nil, err
	}
	trusted := x509.NewCertPool()
	trusted.AddCert(pair.Leaf)
	return &tls.Config{
		Certificates: []tls.Certificate{pair}, RootCAs: trusted, ClientCAs: trusted,
		ClientAuth: tls.RequireAndVerifyClientCert, ServerName: "127.0.0.1",
	}, nil
}

// configure makes the worker of c serve the pages, over the path of s only.
func (s *pageServer) configure(c *agent.Config) {
	c.Funcs = append(c.Funcs,
		Fetch.Serve(func(_ context.Context, numbers []int) ([]*tensor.Tensor, error) { return pagesOf(s.pool, numbers) }),
		PlainPages.Serve(func(context.Context, agent.None) (string, error) { return s.listener.Addr().String(), nil }),
		PipePages.Serve(func(context.Context, agent.None) (string, error) { return s.pipes.URLs()[0], nil }))
	c.Listen = []string{s.path.listen}
	c.Secure = s.path.tls
	c.NewContext = func(o pipe.Options) (*pipe.Context, error) { return s.path.newContext(o, s.tls) }
}

// pagesOf returns views of the pages of pool with the given numbers, or an error if there is no such
// page.
func pagesOf(pool *tensor.Tensor, numbers []int) ([]*tensor.Tensor, error) {
	pages := make([]*tensor.Tensor, len(numbers))
	for i, n := range numbers {
		page, err := pool.Select(0, n)
		if err != nil {
			return nil, err
		}
		pages[i] = page
	}
	return pages, nil
}

// accept serves each connection on a goroutine, until the listener is closed.
func (s *pageServer) accept() {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.work.Go(func() {
			defer c.Close()
			_ = s.answer(c) // it ends with the connection
		})
	}
}

// answer writes the pages that the other end of c requests, one Write for each page, until c ends.
// The error is that of c.
func (s *pageServer) answer(c net.Conn) error {
	var request [4 * fetchPages]byte
	for {
		if _, err := io.ReadFull(c, request[:]); err != nil {
			return err
		}
		for i := range fetchPages {
			n := int(binary.LittleEndian.Uint32(request[4*i:])) % poolPages
			if _, err := c.Write(s.bytes[n*pageBytes : (n+1)*pageBytes]); err != nil {
				return err
			}
		}
	}
}

// fetchPlain requests pages from the other end of c, and reads them into pages of pool. from lists
// the numbers of the pages to request, and to lists, in the same order, the numbers of the pages
// into which they are read. Both must have fetchPages numbers. The error is that of c.
func fetchPlain(c net.Conn, pool []byte, from, to []int) error {
	request := make([]byte, 0, 4*fetchPages)
	for _, n := range from {
		request = binary.LittleEndian.AppendUint32(request, uint32(n))
	}
	if _, err := c.Write(request); err != nil {
		return err
	}
	for _, n := range to {
		if _, err := io.ReadFull(c, pool[n*pageBytes:(n+1)*pageBytes]); err != nil {
			return err
		}
	}
	return nil
}

// close closes the listeners and the pipes, and waits for the connections, which their clients must
// have closed. It returns the error of closing, or nil if the listener was closed before. It does
// nothing and returns nil if s is nil.
func (s *pageServer) close() error {
	if s == nil {
		return nil
	}
	err := s.listener.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	err = errors.Join(err, s.context.Close())
	s.work.Wait()
	return err
}
