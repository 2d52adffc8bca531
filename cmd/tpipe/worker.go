package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
)

// worker is the command worker, which serves the built-in operators to a group until a signal ends it.
type worker struct {
	groupFlags
	rank, world int
	serve       bool
	replace     bool
}

var workerEntry = entry{
	name:    "worker",
	usage:   "[-name NAME] [-rendezvous URL] [flags]",
	summary: "join a group and serve the built-in tensor operators to it",
	help: `Joins a group of workers and serves the built-in tensor operators, by their
ATen names, until a signal ends it. Call them with tpipe call.

Without -world the group is dynamic: workers join and leave at any time. A worker that
was killed has not left; started again under its name with -replace it takes its rank
again. With -world N the group has N workers with the ranks 0 to N-1, and the command
waits until all of them have joined. One worker serves the store of a tcp:// URL: the one with
-store, or the one of rank 0 where -world is given. env:// takes rank, world size and the
store's address from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun
sets them.

The first line printed is "ready as" and the worker's rank and name.`,
	make: func() command { return &worker{} },
}

func (w *worker) flags(fs *flag.FlagSet) {
	w.groupFlags.flags(fs, "worker0")
	fs.IntVar(&w.rank, "rank", -1, "rank of this `worker`; -1 is the lowest that is free, in a dynamic group")
	fs.IntVar(&w.world, "world", 0, "`number` of workers of a static group; 0 is a dynamic one")
	fs.BoolVar(&w.serve, "store", false, "serve the store of a tcp:// -rendezvous")
	fs.BoolVar(&w.replace, "replace", false, "in a dynamic group, replace a worker of the same -name that has died")
}

func (w *worker) run(ctx context.Context, s streams) error {
	if w.world > 0 && (w.rank < 0 || w.rank >= w.world) {
		return usageErrorf("-rank %d: want 0 to %d for -world %d", w.rank, w.world-1, w.world)
	}
	if w.world > 0 && w.replace {
		return usageErrorf("-replace: workers of a static group cannot be replaced, leave out -world")
	}
	if w.serve && w.rank < 0 && strings.HasPrefix(w.storeURL(), "tcp://") {
		w.rank = 0 // it is the first worker on that store
	}
	c, err := w.config(s, w.rank, w.world, w.serve || w.world > 0 && w.rank == 0)
	if err != nil {
		return err
	}
	c.Replace = w.replace
	a, err := w.join(ctx, c)
	if err != nil {
		return interrupted(ctx, err)
	}
	if _, err := fmt.Fprintf(s.out, "ready as %v\n", a.Self()); err != nil {
		return errors.Join(err, a.Close())
	}
	<-ctx.Done()
	return a.Close()
}

// join joins the group with the configuration c, and returns the agent, which the caller must
// close. The error is that of agent.Join, also if joining takes longer than the time of -wait, or a
// *usageError if the address of -rendezvous or -listen is invalid.
func (f *groupFlags) join(ctx context.Context, c agent.Config) (*agent.Agent, error) {
	c.JoinTimeout = f.wait
	a, err := agent.Join(ctx, c)
	return a, flagError("listen", f.storeError(err))
}

// storeError returns a *usageError if err reports that the URL of -rendezvous is invalid, and
// otherwise err, which may be nil.
func (f *groupFlags) storeError(err error) error {
	if bad, ok := errors.AsType[*store.Error](err); ok && errors.Is(err, store.ErrURL) {
		return usageErrorf("-rendezvous %s: %w", f.rendezvous, bad.Err)
	}
	return err
}

// settingFlags are phrases by which errors of package agent name a setting, with the flag that sets it.
var settingFlags = [][2]string{
	{"set Token", "-token-file"}, {"use TLS", "-tls-cert"}, {"set Insecure", "-insecure"}, {"set Listen", "-listen"},
	{"JoinTimeout of", "-wait"}, {"remove or replace it", "-replace"}, {"set StoreOptions.Join", "no -store"},
}

// flagHint returns a text that names the flags for the settings that err, an error of package agent,
// asks for, such as " (flags: -token-file, -insecure)". It returns "" for other errors, and for those
// of handlers.
func flagHint(err error) string {
	_, ofAgent := errors.AsType[*agent.Error](err)
	if _, remote := errors.AsType[*agent.RemoteError](err); remote || !ofAgent {
		return ""
	}
	var flags []string
	for _, s := range settingFlags {
		if strings.Contains(err.Error(), s[0]) {
			flags = append(flags, s[1])
		}
	}
	if len(flags) == 0 {
		return ""
	}
	return " (flags: " + strings.Join(flags, ", ") + ")"
}

// storeURL returns the URL of the store that -rendezvous names.
func (f *groupFlags) storeURL() string { return withScheme("tcp", f.rendezvous) }

// groupFlags are the flags that select the group to join and the worker's name in it.
type groupFlags struct {
	rendezvous string
	group      string
	name       string
	listen     string
	token      string
	insecure   bool
	tls        tlsFlags
	wait       time.Duration
}

func (f *groupFlags) flags(fs *flag.FlagSet, name string) {
	f.storeFlags(fs)
	fs.StringVar(&f.name, "name", name, "`name` by which others call this worker")
	fs.StringVar(&f.listen, "listen", "", "`address` to listen on, HOST:PORT or a URL; several are separated by commas (default shared memory, and a free port of the address from which the store is reached)")
	fs.BoolVar(&f.insecure, "insecure", false, "listen, or serve the store, beyond this machine without a token: every process that reaches the address can call")
}

// storeFlags declares in fs the flags by which a process finds the members of a group and proves that
// it may reach them. Parsing fs sets fields of f.
func (f *groupFlags) storeFlags(fs *flag.FlagSet) {
	fs.StringVar(&f.rendezvous, "rendezvous", "tcp://127.0.0.1:29500", "`url` of the store by which workers find each other: HOST:PORT, which is tcp://HOST:PORT, file://PATH or env://")
	fs.StringVar(&f.group, "group", "default", "`name` of the group; several groups can share one store")
	fs.StringVar(&f.token, "token-file", "", "`file` whose content all workers of the group must know")
	f.tls.memberFlags(fs)
	fs.DurationVar(&f.wait, "wait", time.Minute, "longest `time` to wait for the store and the other workers")
}

// config returns an agent configuration with the flags, the given rank and the size world of the
// group. Its Logger writes to s.err. If serves is true this process serves the store of a tcp://
// URL; with env:// the environment decides. The error is a *usageError, or that of reading a file
// that a flag names.
func (f *groupFlags) config(s streams, rank, world int, serves bool) (agent.Config, error) {
	c := agent.Config{
		Name: f.name, Rank: rank, WorldSize: world, Group: f.group,
		Rendezvous: f.storeURL(), StoreOptions: store.Options{Join: !serves},
		Insecure: f.insecure,
		Logger:   slog.New(slog.NewTextHandler(s.err, nil)),
	}
	if f.wait <= 0 {
		return c, usageErrorf("-wait %v: want more than 0", f.wait)
	}
	var err error
	if c.TLS, err = f.tls.member(); err != nil {
		return c, err
	}
	if f.listen != "" {
		c.Listen = splitAddresses(f.listen)
	}
	if f.token == "" {
		return c, nil
	}
	token, err := os.ReadFile(f.token)
	if err != nil {
		return c, flagError("token-file", err)
	}
	if c.Token = []byte(strings.TrimSpace(string(token))); len(c.Token) == 0 {
		return c, usageErrorf("-token-file %s: it is empty", f.token)
	}
	return c, nil
}
