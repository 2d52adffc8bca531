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

// tlsFlags are the flags that configure TLS. Without any of them a pipe has no TLS.
type tlsFlags struct {
	on                  bool
	cert, key, ca, name string
}

// dialFlags declares in fs the TLS flags of a command that dials. Parsing fs sets fields of f.
func (f *tlsFlags) dialFlags(fs *flag.FlagSet) {
	fs.BoolVar(&f.on, "tls", false, "use TLS, which the other flags for TLS imply; the listener needs a certificate that this system trusts, or one signed by an authority of -tls-ca")
	fs.StringVar(&f.ca, "tls-ca", "", "PEM `file` of the authorities of which one must have signed the listener's certificate")
	fs.StringVar(&f.name, "tls-name", "", "`name` that the listener's certificate must have (default the host that is dialled)")
	fs.StringVar(&f.cert, "tls-cert", "", "PEM `file` of the certificate to show to a listener that asks for one")
	fs.StringVar(&f.key, "tls-key", "", "PEM `file` of the private key for -tls-cert")
}

// listenFlags declares in fs the TLS flags of a command that listens. Parsing fs sets fields of f.
func (f *tlsFlags) listenFlags(fs *flag.FlagSet) {
	fs.StringVar(&f.cert, "tls-cert", "", "PEM `file` of the certificate to show; with it all pipes are TLS")
	fs.StringVar(&f.key, "tls-key", "", "PEM `file` of the private key for -tls-cert")
	fs.StringVar(&f.ca, "tls-ca", "", "PEM `file` of authorities; each client needs a certificate that one of them signed")
}

// memberFlags declares in fs the TLS flags of a worker, which dials and listens. Parsing fs sets
// fields of f.
func (f *tlsFlags) memberFlags(fs *flag.FlagSet) {
	fs.StringVar(&f.cert, "tls-cert", "", "PEM `file` of the certificate to show; with it all workers must use TLS")
	fs.StringVar(&f.key, "tls-key", "", "PEM `file` of the private key for -tls-cert")
	fs.StringVar(&f.ca, "tls-ca", "", "PEM `file` of authorities; each worker needs a certificate that one of them signed")
	fs.StringVar(&f.name, "tls-name", "", "`name` that the certificates of all workers have (default the address of each)")
}

// member returns the TLS configuration of a worker, or nil if no TLS flag is set. The error is a
// *usageError if certificate, key or authorities are missing, or that of a file.
func (f *tlsFlags) member() (*tls.Config, error) {
	if *f == (tlsFlags{}) {
		return nil, nil
	}
	if f.cert == "" || f.key == "" || f.ca == "" {
		return nil, usageErrorf("-tls-cert, -tls-key and -tls-ca belong together: give all three")
	}
	config, authorities, err := f.load()
	if err != nil {
		return nil, err
	}
	config.RootCAs, config.ClientCAs, config.ClientAuth = authorities, authorities, tls.RequireAndVerifyClientCert
	config.ServerName = f.name
	return config, nil
}

// dial returns the options of the transport uv for a TLS client, or nil if no TLS flag is set. The
// error is a *usageError if only one of certificate and key is given, or that of a file.
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

// listen returns the options of the transport uv for a TLS server, or nil if no TLS flag is set.
// With -tls-ca the server requires certificates of clients. The error is a *usageError if
// certificate or key is missing, or that of a file.
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

// load reads the files that the flags name. The Config contains the certificate of -tls-cert, if
// there is one. The CertPool contains the authorities of -tls-ca, and is nil without that flag. The
// error is a *usageError if only one of certificate and key is given. Otherwise it is that of a
// file that cannot be read or is invalid.
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

// identity is what a peer has proved by TLS. A nil *identity stands for a pipe without TLS.
type identity struct {
	Version string   `json:"version"`           // of TLS
	Subject string   `json:"subject,omitempty"` // of the certificate; empty with Issuer and Names: no certificate
	Issuer  string   `json:"issuer,omitempty"`
	Names   []string `json:"names,omitempty"` // host names, addresses and URIs of the certificate
}

// identify returns the version of TLS and, if the peer of p has shown a certificate, its subject,
// issuer and names. It returns nil if p does not use TLS.
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

// String returns the version of TLS and the subject and names of the peer's certificate in one
// line: "TLS 1.3 with CN=store (store.example, 127.0.0.1)", and without a subject "TLS 1.3 with a
// certificate for store.example". Subject and names are quoted if they are not safe to print. If id is nil it returns "no
// TLS".
func (id *identity) String() string {
	if id == nil {
		return "no TLS"
	}
	subject, names := id.Subject, strings.Join(id.Names, ", ")
	switch {
	case subject == "" && names == "":
		return id.Version + ", the peer showed no certificate"
	case subject == "":
		subject = "a certificate for " + names
	case names != "":
		subject += " (" + names + ")"
	}
	return id.Version + " with " + filetransfer.Printable(subject)
}

// pathText returns the transport of plan and, if other machines can reach it, id, the peer's
// identity by TLS: "over shm", "over uv, no TLS" or "over uv, TLS 1.3 with CN=store".
func pathText(plan *pipe.Plan, id *identity) string {
	if plan.Transport != uvName {
		return "over " + plan.Transport
	}
	return "over " + plan.Transport + ", " + id.String()
}
