package main

import (
	"crypto/tls"
	"crypto/x509"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/cmd/tpipe/internal/ferry"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// identity is what a peer proved about itself by TLS.
type identity struct {
	Version string   `json:"version"`           // of TLS
	Subject string   `json:"subject,omitempty"` // of the certificate; none was shown if all of these are empty
	Issuer  string   `json:"issuer,omitempty"`
	Names   []string `json:"names,omitempty"` // hosts, addresses and the like that the certificate is for
}

// identify returns what is known of the peer, nil without TLS.
func identify(p *pipe.Pipe) *identity {
	state, ok := p.TLS()
	if !ok {
		return nil
	}
	id := &identity{Version: tls.VersionName(state.Version)}
	if len(state.PeerCertificates) > 0 {
		cert := state.PeerCertificates[0]
		id.Subject, id.Issuer = cert.Subject.String(), cert.Issuer.String()
		id.Names = certifiedNames(cert)
	}
	return id
}

func certifiedNames(c *x509.Certificate) []string {
	names := append(append([]string{}, c.DNSNames...), c.EmailAddresses...)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	for _, u := range c.URIs {
		names = append(names, u.String())
	}
	return names
}

// String says it in one line.
func (id *identity) String() string {
	switch {
	case id == nil:
		return "plain TCP"
	case id.Subject == "" && len(id.Names) == 0:
		return id.Version + ", the peer showed no certificate"
	case len(id.Names) == 0:
		return id.Version + " with " + ferry.Printable(id.Subject)
	}
	return id.Version + " with " + ferry.Printable(id.Subject+" ("+strings.Join(id.Names, ", ")+")")
}
