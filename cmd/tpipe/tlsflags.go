package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// tlsFlags say how the two ends of a pipe prove who they are. Without any of
// them a pipe is plain TCP.
type tlsFlags struct {
	on                  bool
	cert, key, ca, name string
}

// dialFlags declares the flags of the end that dials.
func (f *tlsFlags) dialFlags(fs *flag.FlagSet) {
	fs.BoolVar(&f.on, "tls", false, "use TLS, which the other flags for TLS imply; the listener needs a certificate that this system trusts, unless -tls-ca says whom to trust")
	fs.StringVar(&f.ca, "tls-ca", "", "PEM `file` of the authorities of which one must have signed the listener's certificate")
	fs.StringVar(&f.name, "tls-name", "", "`name` that the listener's certificate must have (default the host that is dialled)")
	fs.StringVar(&f.cert, "tls-cert", "", "PEM `file` of the certificate to show to a listener that asks for one")
	fs.StringVar(&f.key, "tls-key", "", "PEM `file` of the private key for -tls-cert")
}

// listenFlags declares the flags of the end that listens.
func (f *tlsFlags) listenFlags(fs *flag.FlagSet) {
	fs.StringVar(&f.cert, "tls-cert", "", "PEM `file` of the certificate to show; with it all pipes are TLS")
	fs.StringVar(&f.key, "tls-key", "", "PEM `file` of the private key for -tls-cert")
	fs.StringVar(&f.ca, "tls-ca", "", "PEM `file` of authorities; whoever dials needs a certificate that one of them signed")
}

// dial makes all pipes of a context that dials TLS, if that is wanted.
func (f *tlsFlags) dial(o *pipe.Options) error {
	if !f.on && *f == (tlsFlags{}) {
		return nil
	}
	config, authorities, err := f.load()
	if err != nil {
		return err
	}
	config.RootCAs, config.ServerName = authorities, f.name
	return secure(o, uv.WithTLS(config, nil))
}

// listen makes all pipes of a context that listens TLS, if that is wanted.
func (f *tlsFlags) listen(o *pipe.Options) error {
	if *f == (tlsFlags{}) {
		return nil
	}
	if f.cert == "" && f.key == "" {
		return usageErrorf("-tls-ca: a listener with TLS needs -tls-cert and -tls-key too")
	}
	config, authorities, err := f.load()
	if err != nil {
		return err
	}
	if authorities != nil {
		config.ClientCAs, config.ClientAuth = authorities, tls.RequireAndVerifyClientCert
	}
	return secure(o, uv.WithTLS(nil, config))
}

// load reads the files.
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

// secure leaves only the transport that has TLS.
func secure(o *pipe.Options, with uv.Option) error {
	at := slices.IndexFunc(o.Transports, func(e pipe.TransportEntry) bool { return e.Name == "uv" })
	if at < 0 {
		return usageErrorf("-transport: only uv has TLS")
	}
	entry := o.Transports[at]
	entry.Transport = uv.New(with)
	o.Transports = []pipe.TransportEntry{entry}
	return nil
}
