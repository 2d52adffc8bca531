package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"os"

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

// dial returns what makes the connections of an end that dials TLS, nothing if
// that is not wanted.
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

// listen returns what makes the connections of an end that listens TLS, nothing
// if that is not wanted.
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
