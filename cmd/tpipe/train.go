package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/cmd/tpipe/internal/train"
)

// trainer is the command train, which trains a network in three processes.
type trainer struct {
	groupFlags
	config train.Config
	json   bool
	svg    string

	set *flag.FlagSet // the flags, which are parsed when the command runs
}

var trainEntry = entry{
	name:    "train",
	usage:   "[flags]",
	summary: "train a network on handwritten digits in three processes",
	help: `Trains a network on handwritten digits in three processes: "trainer", which has the
data, and "stage0" and "stage1", which have a layer each. The trainer calls the
stages through remote references, computes the gradients by distributed autograd,
and has an optimizer on each stage change the parameters there. The rows of the data
set have a fixed order: the first 1437 are for training, the other 360 for the test
after each epoch.

-init and -save name safetensors files with the tensors stage0.weight [HIDDEN,64],
stage0.bias, stage1.weight [10,HIDDEN] and stage1.bias.

To start the processes by hand, on any hosts, give each of them its -name and the
same -rendezvous; the trainer serves a store at a tcp:// URL. Each stage takes -init,
and stage0 takes -save, with files of its own host; the settings of the network are
flags of the trainer. The processes end with the training.

  tpipe train -name trainer -rendezvous tcp://192.0.2.1:29500 -token-file secret
  tpipe train -name stage0 -rendezvous tcp://192.0.2.1:29500 -token-file secret
  tpipe train -name stage1 -rendezvous tcp://192.0.2.1:29500 -token-file secret

-device cuda:0 has all processes keep their tensors on that GPU and compute there:
parameters, gradients, and the data of the trainer. Started by hand, each process
takes the flag. The tensors between them need no copy through host memory if the
processes can map each other's memory (see tpipe probe); paths then has cuda_ipc.

-json prints one line: losses by step, test_accuracy by epoch, steps,
steps_per_second (tests included), paths between the workers, and for each of workers
the calls that it has served, the messages with gradients that it has received, the
bytes of these gradients, the number of its parameters, and the device of its tensors.`,
	make: func() command { return &trainer{} },
}

func (t *trainer) flags(fs *flag.FlagSet) {
	t.set = fs
	t.groupFlags.flags(fs, "")
	fs.Lookup("name").Usage = "`name` of the only process to run, by hand: trainer, stage0 or stage1 " +
		"(default all three, started by this one)"
	c := &t.config
	fs.IntVar(&c.Hidden, "hidden", 128, "`number` of hidden units")
	fs.IntVar(&c.Batch, "batch", 32, "`number` of rows of a step")
	fs.Float64Var(&c.LR, "lr", 0.1, "learning `rate`")
	fs.IntVar(&c.Epochs, "epochs", 30, "`number` of passes through the data")
	fs.Uint64Var(&c.Seed, "seed", 0, "`number` that determines the random initial weights")
	fs.StringVar(&c.Init, "init", "", "safetensors `file` with the initial weights (default random ones)")
	fs.StringVar(&c.Save, "save", "", "safetensors `file` to which the trained weights are written")
	placeFlags(fs, &c.Transport, &c.Device)
	fs.BoolVar(&t.json, "json", false, "print the result as one line of JSON")
	fs.StringVar(&t.svg, "svg", "", "`file` to which the curves of loss and accuracy are written, as SVG")
}

// groupOnly, trainerOnly and stageOnly are the flags of processes that are started by hand, of the
// trainer, and of the stages.
var (
	groupOnly = []string{
		"rendezvous", "group", "listen", "insecure", "token-file", "tls-cert", "tls-key", "tls-ca", "tls-name", "wait",
	}
	trainerOnly = []string{"hidden", "batch", "lr", "epochs", "seed", "json", "svg"}
	stageOnly   = []string{"init", "save"}
)

func (t *trainer) run(ctx context.Context, s streams) error {
	if err := t.check(); err != nil {
		return err
	}
	place, err := openPlace(t.config.Transport, t.config.Device)
	if err != nil {
		return err
	}
	defer reserveHeap()()
	switch t.name {
	case "":
		err = t.runAll(ctx, s, place)
	case train.Trainer:
		err = t.runByHand(ctx, s, place)
	default:
		err = t.runStageByHand(ctx, s, place)
	}
	return interrupted(ctx, errors.Join(err, place.close()))
}

// check returns a *usageError if a flag is invalid, or is not one of the process that t.name names. It
// also returns an error if a file cannot be read or written.
func (t *trainer) check() error {
	refused, why := groupOnly, "give -name too, to start the processes by hand"
	switch t.name {
	case "":
	case train.Trainer:
		refused, why = stageOnly, "it is a flag of the stages, which have the weights"
	case train.Stage0, train.Stage1:
		refused, why = trainerOnly, "it is a flag of the trainer"
	default:
		return usageErrorf("-name %q: want %s", t.name, strings.Join(train.Names, ", "))
	}
	var err error
	t.set.Visit(func(f *flag.Flag) {
		if slices.Contains(refused, f.Name) {
			err = cmp.Or(err, usageErrorf("-%s: %s", f.Name, why))
		}
	})
	if err != nil {
		return err
	}
	if t.name == train.Stage1 && t.config.Save != "" {
		return usageErrorf("-save: stage0 writes the file")
	}
	if err := t.checkSettings(); err != nil {
		return err
	}
	return t.checkFiles()
}

// checkSettings returns a *usageError if a setting of the training is out of range.
func (t *trainer) checkSettings() error {
	c := t.config
	switch {
	case c.Hidden < 1 || c.Hidden > train.MaxHidden:
		return usageErrorf("-hidden %d: want 1 to %d", c.Hidden, train.MaxHidden)
	case c.Batch < 1 || c.Batch > train.TrainN:
		return usageErrorf("-batch %d: want 1 to %d", c.Batch, train.TrainN)
	case !(c.LR > 0) || math.IsInf(c.LR, 0):
		return usageErrorf("-lr %g: want more than 0", c.LR)
	case c.Epochs < 1 || c.Epochs > maxCount:
		return usageErrorf("-epochs %d: want 1 to %d", c.Epochs, maxCount)
	case !slices.Contains(trainTransports, c.Transport):
		return usageErrorf("-transport %q: want %s", c.Transport, strings.Join(trainTransports, ", "))
	case c.Transport == "shm" && t.tls != tlsFlags{}:
		return usageErrorf("-transport shm: it has no TLS")
	}
	return checkDevice(c.Device)
}

// checkFiles returns an error if the file of -init has no weights for the network, or if that of
// -save cannot be written. The stages of processes that are started by hand check -init themselves.
func (t *trainer) checkFiles() error {
	if path := t.config.Save; path != "" {
		if _, err := os.Stat(filepath.Dir(path)); err != nil {
			return fmt.Errorf("-save: %w", err)
		}
		if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
			return fmt.Errorf("-save: %s is not a regular file", path)
		}
	}
	if t.config.Init == "" || t.name != "" {
		return nil
	}
	if err := train.CheckFile(t.config.Init, t.config.Hidden); err != nil {
		return fmt.Errorf("-init: %w", err)
	}
	return nil
}

// runByHand runs the trainer of stages that others start.
func (t *trainer) runByHand(ctx context.Context, s streams, place *trainPlace) error {
	c, err := t.groupFlags.config(s, 0, len(train.Names), true)
	if err != nil {
		return err
	}
	return t.train(ctx, c, s, place, t.join)
}

// joinFunc joins a group, as agent.Join does.
type joinFunc func(context.Context, agent.Config) (*agent.Agent, error)

// train joins a group as the trainer at place, with the configuration c, trains, and prints the result.
func (t *trainer) train(ctx context.Context, c agent.Config, s streams, place *trainPlace, join joinFunc) error {
	svg, err := openOutput("-svg", t.svg)
	if err != nil {
		return err
	}
	place.configure(&c)
	group := c
	part, err := train.NewPart(train.Trainer, train.Files{}, place.Device, &c)
	if err != nil {
		svg.discard()
		return err
	}
	a, err := join(ctx, c)
	if err != nil {
		svg.discard()
		return err
	}
	screen := newTrainScreen(s, t.json, t.config.Epochs)
	r, err := part.Run(ctx, a, t.config, screen.show)
	screen.clear()
	if err == nil {
		r.Paths, err = train.Paths(ctx, group, r.Workers)
	}
	if err != nil {
		svg.discard()
		return errors.Join(err, a.Close())
	}
	return errors.Join(a.Shutdown(ctx), svg.write(trainChart(r)), screen.result(r))
}
