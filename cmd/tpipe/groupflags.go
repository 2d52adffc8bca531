package main

import (
	"cmp"
	"flag"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
)

// groupFlags say which group to join, and as whom.
type groupFlags struct {
	rendezvous string
	group      string
	name       string
	listen     string
	token      string
	insecure   bool
	wait       time.Duration
}

func (f *groupFlags) flags(fs *flag.FlagSet, name string) {
	fs.StringVar(&f.rendezvous, "rendezvous", "tcp://127.0.0.1:29500", "`url` of the store by which workers find each other: tcp://host:port, file://path or env://")
	fs.StringVar(&f.group, "group", "default", "`name` of the group, to keep several on one store apart")
	fs.StringVar(&f.name, "name", name, "`name` by which others call this worker")
	fs.StringVar(&f.listen, "listen", "", "`url` to listen on; several are separated by commas (default a free port of the loopback interface, and shared memory)")
	fs.StringVar(&f.token, "token-file", "", "`file` whose content all workers of the group must know")
	fs.BoolVar(&f.insecure, "insecure", false, "listen, or serve the store, beyond this machine without a token: whoever reaches the address can call")
	fs.DurationVar(&f.wait, "wait", time.Minute, "longest `time` to wait for the store and the other workers")
}

// config is what joins the group. Who serves the store of a tcp:// URL is said by
// serves, where the environment does not say it.
func (f *groupFlags) config(s streams, rank, world int, serves bool) (agent.Config, error) {
	c := agent.Config{
		Name: f.name, Rank: rank, WorldSize: world, Group: f.group,
		Rendezvous: f.rendezvous, StoreOptions: store.Options{Join: !serves},
		Insecure: f.insecure,
		Logger:   slog.New(slog.NewTextHandler(s.err, nil)),
	}
	if _, err := url.Parse(f.rendezvous); err != nil || f.wait <= 0 {
		return c, usageErrorf("%w", cmp.Or(err, fmt.Errorf("-wait %v: want more than 0", f.wait)))
	}
	if f.listen != "" {
		c.Listen = strings.Split(f.listen, ",")
	}
	if f.token == "" {
		return c, nil
	}
	token, err := os.ReadFile(f.token)
	if err != nil {
		return c, blame("token-file", err)
	}
	if c.Token = []byte(strings.TrimSpace(string(token))); len(c.Token) == 0 {
		return c, usageErrorf("-token-file %s: it is empty", f.token)
	}
	return c, nil
}
