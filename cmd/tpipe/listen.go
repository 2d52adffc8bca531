package main

import (
	"context"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
)

// sharedScheme begins the URLs of shared memory.
const sharedScheme = shm.Name + "://"

// listen makes a listener on urls. Where the options have shared memory it
// listens there too, under a name that the system picks: whoever dials one of
// the urls from this machine is moved there while the pipe opens. It returns
// what the urls have become, the best first.
func listen(ctx context.Context, c *pipe.Context, o pipe.Options, urls []string) (*pipe.Listener, []string, error) {
	shared := func(url string) bool { return strings.HasPrefix(url, sharedScheme) }
	if !sharesMemory(o) || slices.ContainsFunc(urls, shared) {
		l, err := c.Listen(ctx, urls...)
		if err != nil {
			return nil, nil, err
		}
		return l, l.URLs(), nil
	}
	l, err := c.Listen(ctx, append(urls, sharedScheme)...)
	if err != nil {
		return nil, nil, err
	}
	return l, slices.DeleteFunc(l.URLs(), shared), nil
}

// sharesMemory reports whether pipes with these options can use shared memory.
func sharesMemory(o pipe.Options) bool {
	return slices.ContainsFunc(o.Transports, func(e pipe.TransportEntry) bool {
		return e.Name == shm.Name && e.Transport.Viable() == nil
	})
}
