package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/cmd/tpipe/internal/filetransfer"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// tlsFlags are the flags that configure TLS. Without any of them a pipe uses plain TCP.
type tlsFlags struct {
	on                  bool
	cert, key, ca, name string
}

// dialFlags declares the flags of commands that dial.
func (f *tlsFlags) dialFlags(fs *flag.FlagSet) {
	fs.BoolVar(&f.on, "tls", false, "use TLS, which the other flags for TLS imply; the listener needs a certificate that this system trusts, or one signed by an authority of -tls-ca")
	fs.StringVar(&f.ca, "tls-ca", "", "PEM `file` of the authorities of which one must have signed the listener's certificate")
	fs.StringVar(&f.name, "tls-name", "", "`name` that the listener's certificate must have (default the host that is dialled)")
	fs.StringVar(&f.cert, "tls-cert", "", "PEM `file` of the certificate to show to a listener that asks for one")
	fs.StringVar(&f.key, "tls-key", "", "PEM `file` of the private key for -tls-cert")
}

// listenFlags declares the flags of commands that listen.
func (f *tlsFlags) listenFlags(fs *flag.FlagSet) {
	fs.StringVar(&f.cert, "tls-cert", "", "PEM `file` of the certificate to show; with it all pipes are TLS")
	fs.StringVar(&f.key, "tls-key", "", "PEM `file` of the private key for -tls-cert")
	fs.StringVar(&f.ca, "tls-ca", "", "PEM `file` of authorities; each client needs a certificate that one of them signed")
}

// dial returns the options of the transport uv for a TLS client, nil if no flag for TLS is set. The
// error is that of load.
func (f *tlsFlags) dial() ([]uv.Option, error) {
	if !f.on && *f == (tlsFlags{}) {
		return nil, nil
	}
	config, authorities, err := f.load()
	if err != nil {
		return nil, err
	}
	config.RootCAs, config.ServerName = authorities, f.name
	return []uv.Option{uv.WithTLS(config, nil)}, nil
}

// listen returns the options of the transport uv for a TLS server, nil if no flag for TLS is set. The
// error is a *usageError if the certificate is missing, or that of load.
func (f *tlsFlags) listen() ([]uv.Option, error) {
	if *f == (tlsFlags{}) {
		return nil, nil
	}
	if f.cert == "" && f.key == "" {
		return nil, usageErrorf("-tls-ca: a listener with TLS needs -tls-cert and -tls-key too")
	}
	config, authorities, err := f.load()
	if err != nil {
		return nil, err
	}
	if authorities != nil {
		config.ClientCAs, config.ClientAuth = authorities, tls.RequireAndVerifyClientCert
	}
	return []uv.Option{uv.WithTLS(nil, config)}, nil
}

// load reads the files that the flags name. It returns a configuration with the certificate, if one is
// named, and the authorities, nil if none are named. The error is a *usageError for half a pair of
// certificate and key, or about a file.
func (f *tlsFlags) load() (*tls.Config, *x509.CertPool, error) {
	config := &tls.Config{}
	if (f.cert == "") != (f.key == "") {
		return nil, nil, usageErrorf("-tls-cert and -tls-key belong together: give both")
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, nil, fmt.Errorf("-tls-cert %s, -tls-key %s: %w", f.cert, f.key, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	if f.ca == "" {
		return config, nil, nil
	}
	text, err := os.ReadFile(f.ca)
	if err != nil {
		return nil, nil, fmt.Errorf("-tls-ca: %w", err)
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(text) {
		return nil, nil, fmt.Errorf("-tls-ca %s: %w", f.ca, errors.New("no certificate in PEM form"))
	}
	return config, authorities, nil
}

// identity is what a peer has proved by TLS. A nil *identity stands for plain TCP.
type identity struct {
	Version string   `json:"version"`           // of TLS
	Subject string   `json:"subject,omitempty"` // of the certificate; empty with Issuer and Names: no certificate
	Issuer  string   `json:"issuer,omitempty"`
	Names   []string `json:"names,omitempty"` // host names, addresses and URIs of the certificate
}

// identify returns the TLS identity of the peer of p, nil if p is not TLS.
func identify(p *pipe.Pipe) *identity {
	state, ok := p.TLS()
	if !ok {
		return nil
	}
	id := &identity{Version: tls.VersionName(state.Version)}
	if len(state.PeerCertificates) > 0 {
		cert := state.PeerCertificates[0]
		id.Subject, id.Issuer = cert.Subject.String(), cert.Issuer.String()
		id.Names = slices.Concat(cert.DNSNames, cert.EmailAddresses)
		for _, ip := range cert.IPAddresses {
			id.Names = append(id.Names, ip.String())
		}
		for _, u := range cert.URIs {
			id.Names = append(id.Names, u.String())
		}
	}
	return id
}

// String returns the identity in one line; id may be nil.
func (id *identity) String() string {
	switch {
	case id == nil:
		return "plain TCP"
	case id.Subject == "" && len(id.Names) == 0:
		return id.Version + ", the peer showed no certificate"
	case len(id.Names) == 0:
		return id.Version + " with " + filetransfer.Printable(id.Subject)
	}
	return id.Version + " with " + filetransfer.Printable(id.Subject+" ("+strings.Join(id.Names, ", ")+")")
}
