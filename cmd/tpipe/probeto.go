package main

import (
	"context"
	"encoding/json"
	"time"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// probeTimeout bounds the opening of the pipe that is looked at.
const probeTimeout = 30 * time.Second

// ask opens a pipe to a live peer and prints its path.
func (p *probe) ask(ctx context.Context, s streams) error {
	tls, err := p.tls.dial()
	if err != nil {
		return err
	}
	path := pathFlags{offer: p.offer, dialect: p.dialect}
	opts, err := path.options(tls...)
	if err != nil {
		return err
	}
	opts.Name = "tpipe probe"
	opts.HandshakeTimeout = probeTimeout
	c, err := pipe.New(opts)
	if err != nil {
		return err
	}
	defer c.Close()
	conn, err := c.Dial(ctx, p.to)
	if err != nil {
		return interrupted(ctx, blame("to", err))
	}
	defer conn.Close() // a peer that stays open changes nothing about the plan
	if p.json {
		enc := json.NewEncoder(s.out)
		enc.SetIndent("", "  ")
		return enc.Encode(conn.Plan())
	}
	printPlan(s.out, conn.Plan(), true)
	return nil
}
