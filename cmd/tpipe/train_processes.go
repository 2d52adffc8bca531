package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/cmd/tpipe/internal/train"
	"github.com/tensorpipe-go/tensorpipe/internal/hugepage"
)

// runAll starts the stages as processes, trains, and ends them.
func (t *trainer) runAll(ctx context.Context, s streams, place *trainPlace) (err error) {
	defer shareProcessors()()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	server, err := store.Serve(ctx, "127.0.0.1:0", store.ServerOptions{})
	if err != nil {
		return err
	}
	defer server.Close()
	token := rand.Text()
	var stages []*stageProcess
	defer func() { err = stopStages(stages, err) }()
	for _, name := range train.Names[1:] {
		p, err := startStage(name, server.Addr(), token, t.config, cancel)
		if err != nil {
			return err
		}
		stages = append(stages, p)
	}
	return t.train(ctx, stageConfig(s, server.Addr(), token), s, place, agent.Join)
}

// heapReserve is the number of bytes that a process allocates before its first garbage collection.
const heapReserve = 32 << 20

// reserveHeap has the garbage collector run after each heapReserve bytes, unless GOGC is set: the heap is so
// small that it would run every 50 steps. It takes the memory from the system at once, in huge pages where these
// exist, because each page that a step takes costs as much as a small message. undo ends the reservation.
func reserveHeap() (undo func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	block := hugepage.Make(heapReserve)
	for i := 0; i < len(block); i += os.Getpagesize() {
		block[i] = 1
	}
	counted := make([]byte, heapReserve) // is never written, and so has no memory
	runtime.GC()                         // frees the block, whose memory is used next
	return func() { runtime.KeepAlive(counted) }
}

// shareProcessors leaves an equal part of the processors to each process of the training, unless GOMAXPROCS
// is set: only one of them computes at a time, and the others would take its processor to look for work. undo
// gives this process all again.
func shareProcessors() (undo func()) {
	if os.Getenv("GOMAXPROCS") != "" {
		return func() {}
	}
	before := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(max(1, before/len(train.Names)))
	return func() { runtime.GOMAXPROCS(before) }
}

// stageConfig returns the configuration of a worker that finds the others through the store at addr.
func stageConfig(s streams, addr, token string) agent.Config {
	return agent.Config{
		Rendezvous: "tcp://" + addr, StoreOptions: store.Options{Join: true},
		Token: []byte(token), JoinTimeout: time.Minute,
		Logger: slog.New(slog.NewTextHandler(s.err, &slog.HandlerOptions{Level: slog.LevelError})),
	}
}

// stageProcess is the process of a stage that this process has started. It ends when its stdin does.
type stageProcess struct {
	name   string
	cmd    *exec.Cmd
	stdin  io.Closer
	stderr bytes.Buffer  // read after the process has ended
	ended  chan struct{} // closed when err is set
	err    error         // of the process
}

// startStage starts the stage with that name. If the process fails, it calls failed with an error that
// has the name of the stage.
func startStage(name, addr, token string, c train.Config, failed func(error)) (*stageProcess, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &stageProcess{name: name, ended: make(chan struct{})}
	p.cmd = exec.Command(program, stageName, "-name", name, "-store", addr,
		"-transport", c.Transport, "-device", c.Device, "-init", c.Init, "-save", c.Save)
	p.cmd.Stderr = &p.stderr
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.stdin = stdin
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	_, written := fmt.Fprintln(stdin, token)
	go func() {
		err := p.cmd.Wait()
		if err != nil {
			p.err = fmt.Errorf("process %s: %w", name, err)
			if text := strings.TrimSpace(p.stderr.String()); text != "" {
				p.err = fmt.Errorf("%w: %s", p.err, text[strings.LastIndexByte(text, '\n')+1:])
			}
			failed(p.err)
		}
		close(p.ended)
	}()
	if written != nil {
		_ = p.stop(true) // the error of the process is the reason
		return nil, cmp.Or(p.err, written)
	}
	return p, nil
}

// stageTimeout bounds the exit of a stage after its stdin was closed, and failedStageTimeout that after
// the training has failed.
const (
	stageTimeout       = 10 * time.Second
	failedStageTimeout = 300 * time.Millisecond
)

// stop closes the stdin of the process, waits until it has ended, and returns its error. It kills the
// process, and returns nil, if that takes too long after the training has failed.
func (p *stageProcess) stop(failed bool) error {
	_ = p.stdin.Close()
	limit := stageTimeout
	if failed {
		limit = failedStageTimeout
	}
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case <-p.ended:
		return p.err
	case <-late.C:
	}
	_ = p.cmd.Process.Kill()
	<-p.ended
	if failed {
		return nil
	}
	return p.err
}

// stopStages stops all processes, and returns err, which is not nil if the training has failed, and the
// errors of the processes. After a failure it leaves out those of processes that no signal has ended:
// they fail because the trainer has.
func stopStages(stages []*stageProcess, err error) error {
	errs := make([]error, len(stages)+1)
	errs[0] = err
	var stopping sync.WaitGroup
	for i, p := range stages {
		stopping.Go(func() {
			if e := p.stop(err != nil); e != nil && !errors.Is(err, e) && (err == nil || p.cmd.ProcessState.ExitCode() < 0) {
				errs[i+1] = e
			}
		})
	}
	stopping.Wait()
	return errors.Join(errs...)
}

// stageCommand is the hidden command that runs a stage for the trainer that has started it.
type stageCommand struct {
	name, store, transport, device string
	files                          train.Files
}

const stageName = "train-stage"

var stageEntry = entry{
	name:    stageName,
	summary: "a stage of tpipe train",
	help:    "Has a part of the network of tpipe train, which starts it.",
	hidden:  true,
	make:    func() command { return &stageCommand{} },
}

func (c *stageCommand) flags(fs *flag.FlagSet) {
	fs.StringVar(&c.name, "name", "", "`name` of the stage")
	fs.StringVar(&c.store, "store", "", "`address` of the store")
	fs.StringVar(&c.files.Init, "init", "", "`file` with the initial weights")
	fs.StringVar(&c.files.Save, "save", "", "`file` to which the weights are written")
	placeFlags(fs, &c.transport, &c.device)
}

// errNoTrainer is the cause of cancellation when the trainer has closed stdin or has died.
var errNoTrainer = errors.New("the trainer has gone")

func (c *stageCommand) run(ctx context.Context, s streams) error {
	defer reserveHeap()()
	defer shareProcessors()()
	signal.Ignore(os.Interrupt) // of the terminal: the trainer ends its stages
	in := bufio.NewReader(s.in)
	token, err := in.ReadString('\n')
	if err != nil {
		return errNoTrainer
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		_, _ = io.Copy(io.Discard, in)
		cancel(errNoTrainer)
	}()
	place, err := openPlace(c.transport, c.device)
	if err != nil {
		return err
	}
	config := stageConfig(s, c.store, strings.TrimSpace(token))
	err = errors.Join(serveStage(ctx, c.name, c.files, config, place, agent.Join, nil), place.close())
	if errors.Is(context.Cause(ctx), errNoTrainer) {
		return nil // no process is left that could use an error
	}
	return interrupted(ctx, err)
}

// runStageByHand runs a stage of a trainer that others start.
func (t *trainer) runStageByHand(ctx context.Context, s streams, place *trainPlace) error {
	c, err := t.groupFlags.config(s, 0, len(train.Names), false)
	if err != nil {
		return err
	}
	return serveStage(ctx, t.name, train.Files{Init: t.config.Init, Save: t.config.Save}, c, place, t.join, s.out)
}

// serveStage joins a group as the stage with that name at place, and serves it until the trainer ends the group or
// ctx ends. It prints a line to out, unless that is nil, once all workers have joined.
func serveStage(ctx context.Context, name string, f train.Files, c agent.Config, place *trainPlace, join joinFunc, out io.Writer) error {
	place.configure(&c)
	part, err := train.NewPart(name, f, place.Device, &c)
	if err != nil {
		return err
	}
	a, err := join(ctx, c)
	if err != nil {
		return err
	}
	if out != nil {
		if _, err := fmt.Fprintf(out, "ready as %v\n", a.Self()); err != nil {
			return errors.Join(err, a.Close())
		}
	}
	if err := part.Wait(ctx, a); err != nil {
		return errors.Join(err, a.Close())
	}
	return a.Shutdown(ctx)
}
