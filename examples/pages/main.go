// Command pages moves pages of a KV cache from the pool of one process to chosen places in the pool
// of another, without a copy in between. Start both, in two terminals:
//
//	go run ./examples/pages -role prefill
//	go run ./examples/pages -role decode
//
// The pages go through shared memory, with -over tcp over TCP, and encrypted with -over tls and a
// certificate:
//
//	openssl req -x509 -newkey ed25519 -nodes -days 1 -subj /CN=pages -addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem
//	go run ./examples/pages -over tls -cert cert.pem -key key.pem -role prefill
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

const pageBytes, poolPages, fetchPages = 256 << 10, 256, 64

// fetch returns the pages with the given numbers, which are views of the pool of the called worker.
var fetch = agent.NewFunc[[]int, []*tensor.Tensor]("pages.fetch")

func main() {
	role := flag.String("role", "prefill", "prefill serves pages, decode fetches them")
	over := flag.String("over", "shm", "shm, tcp or tls")
	rendezvous := flag.String("rendezvous", "tcp://127.0.0.1:29500", "URL of the store where the workers meet; prefill serves it")
	cert := flag.String("cert", "", "PEM file with the certificate of both workers, for tls")
	key := flag.String("key", "", "PEM file with its key")
	flag.Parse()
	config, err := path(*over, *cert, *key)
	rank := slices.Index([]string{"prefill", "decode"}, *role)
	if rank < 0 {
		err = fmt.Errorf("-role %s: want prefill or decode", *role)
	} else if err == nil {
		config.Name, config.Rank, config.Rendezvous, config.WorldSize = *role, rank, *rendezvous, 2
		err = run(context.Background(), config, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "pages:", err)
		os.Exit(1)
	}
}

// path returns a Config for workers that connect over shm, tcp or tls, the latter with the files cert
// and key. The error is that of a file, or lists the valid values of over.
func path(over, cert, key string) (agent.Config, error) {
	var options []uv.Option
	switch over {
	case "shm":
		return agent.Config{Listen: []string{"shm://"}}, nil
	case "tls":
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return agent.Config{}, err
		}
		trusted := x509.NewCertPool()
		trusted.AddCert(pair.Leaf)
		t := &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: trusted, ClientCAs: trusted, ClientAuth: tls.RequireAndVerifyClientCert}
		options = append(options, uv.WithTLS(t, t))
	case "tcp":
	default:
		return agent.Config{}, fmt.Errorf("-over %s: want shm, tcp or tls", over)
	}
	onlyTCP := func(o pipe.Options) (*pipe.Context, error) {
		o.Transports = []pipe.TransportEntry{{Name: "uv", Transport: uv.New(options...)}}
		o.Channels = []pipe.ChannelEntry{{Name: "basic", Factory: basic.New()}}
		return pipe.New(o)
	}
	return agent.Config{Listen: []string{"uv://127.0.0.1:0"}, NewContext: onlyTCP, Secure: over == "tls"}, nil
}

// run joins the group as the worker config.Name. The worker decode fetches pages and prints a line
// to out; the other one serves them. Both leave when no worker has calls under way.
func run(ctx context.Context, config agent.Config, out io.Writer) error {
	all := make([]uint8, poolPages*pageBytes)
	for i := range all {
		all[i] = byte(i / pageBytes * (1 - config.Rank)) // of prefill the number of the page, of decode 0
	}
	pool, err := tensor.FromSlice(all, poolPages, pageBytes)
	if err != nil {
		return err
	}
	var leaving sync.WaitGroup // replies that use pages of the pool, which must not be evicted
	config.Funcs = agent.Funcs{fetch.Serve(func(ctx context.Context, numbers []int) ([]*tensor.Tensor, error) {
		leaving.Add(1)
		if err := agent.AfterReply(ctx, func(error) { leaving.Done() }); err != nil {
			return nil, err
		}
		return pages(pool, numbers)
	})}
	a, err := agent.Join(ctx, config)
	if err != nil {
		return err
	}
	defer leaving.Wait()
	if config.Name == "decode" {
		if err := decode(ctx, a, pool, out); err != nil {
			return errors.Join(err, a.Close())
		}
	}
	return a.Shutdown(ctx)
}

// decode fetches random pages of prefill into random places of pool, checks them and prints a line.
func decode(ctx context.Context, a *agent.Agent, pool *tensor.Tensor, out io.Writer) error {
	from, to := rand.Perm(poolPages)[:fetchPages], rand.Perm(poolPages)[:fetchPages]
	into, err := pages(pool, to)
	if err != nil {
		return err
	}
	if _, err := fetch.Call(ctx, a, "prefill", from, agent.WithInto(into...)); err != nil {
		return err
	}
	for i, page := range into {
		if data, _ := tensor.Data[uint8](page); bytes.Count(data, []byte{byte(from[i])}) != pageBytes {
			return fmt.Errorf("place %d does not have page %d", to[i], from[i])
		}
	}
	fmt.Fprintf(out, "%d pages of %d KiB are at the chosen places\n", fetchPages, pageBytes>>10)
	return nil
}

// pages returns views of the pages of pool with these numbers, or an error for one that pool lacks.
func pages(pool *tensor.Tensor, numbers []int) (views []*tensor.Tensor, err error) {
	views = make([]*tensor.Tensor, len(numbers))
	for i, n := range numbers {
		if views[i], err = pool.Select(0, n); err != nil {
			return nil, err
		}
	}
	return views, nil
}
