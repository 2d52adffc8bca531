package agent

import (
	"cmp"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/aten"
	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Config describes a worker and the group that it joins.
type Config struct {
	// Name is what others call this worker: 1 to 127 of A-Z, a-z, 0-9, '-', '_' and
	// ':', unique in the group.
	Name string

	// Rank is the number of this worker in a group of WorldSize, from 0 on. With a
	// WorldSize of 0 the group is dynamic: workers come and go, and a Rank below 0
	// stands for the lowest that is free. For env:// both come from the environment.
	Rank      int
	WorldSize int

	// Replace lets this worker take the place of one of the same name in a dynamic
	// group, which died without leaving. Whatever was agreed on with that one is void.
	Replace bool

	// Client makes this worker one that only comes to call, in a dynamic group: WorkerInfos
	// and Workers leave it out, and Barrier and AllGather without workers do not wait for
	// it, so that those who have work to do together need not know when clients come, go or
	// die. By its name or rank it is called as others are. One that has died is removed by
	// those who had a pipe to it and can open no other, which therefore has to be possible
	// while it lives: it listens where the workers reach it. One that died before it had any
	// pipe stays listed, where it does no harm but keep its name and rank. With a WorldSize
	// the error of Join matches ErrConfig.
	Client bool

	// Rendezvous is the URL of the store by which workers find each other, see
	// store.Open. StoreOptions go with it; rank and world size are set from above.
	// In place of it Store may be one that is open, and stays so.
	Rendezvous   string
	StoreOptions store.Options
	Store        store.Store

	// Group keeps several groups on one store apart. Default "default".
	Group string

	// Listen is where others reach this worker, see pipe.Context.Listen. Default:
	// a free port of the loopback interface, and shared memory.
	Listen []string

	// Token is a secret of the group: who does not know it is turned away. It is never
	// sent. Without it, and without TLS set up in NewContext, whoever reaches the
	// address can call what is served, and whoever reaches the store can become a member;
	// listening beyond the loopback interface, and serving the store of Rendezvous there,
	// is then refused unless Insecure is set, and logged.
	Token    []byte
	Insecure bool

	// NewContext makes the pipes, from options that have the name, the limits and the
	// logger. Default: tensorpipe.NewContext, where over TCP a worker counts as dead that
	// has said nothing for 30 s to what was sent to it, or is stopped and has taken in
	// nothing for that long; see uv.WithUserTimeout. Secure says that its transports
	// encrypt and know their peers.
	NewContext func(pipe.Options) (*pipe.Context, error)
	Secure     bool

	// Funcs are the functions that are served, Handlers what serves messages of other
	// types, by type. Types that begin with "agent." are the agent's own.
	Funcs    Funcs
	Handlers map[string]Handler

	// Operators are what Op calls. The table must not change any more. Default:
	// aten.Default().
	Operators *aten.Table

	Interceptors []Interceptor

	// Outgoing decides what becomes of each message of a call that is about to leave,
	// in tests; see package faulty. It is called from any goroutine and does not block.
	// Default: all are sent.
	Outgoing func(*Message) Fate

	// Registry knows the types and errors that travel. Default: an empty one.
	Registry *codec.Registry

	// Codec encodes arguments and results, in place of package codec.
	Codec Codec

	// Timeout is the limit of calls that have none of their own. Default 60 s;
	// NoTimeout is none.
	Timeout time.Duration

	// MaxHandlers bounds the handlers that run at once; those that wait for calls of
	// their own, or with their context for a future or the store, do not count. Default 256.
	MaxHandlers int

	// ProfileLabels marks the goroutines of handlers in profiles with "function" and
	// "caller", for some allocations per call. Handlers that are Short have none.
	ProfileLabels bool

	// Allocator makes the memory for tensors that come. Where it fails, or panics, that
	// call does. It may run on the goroutine of a caller, as what is Short does. Default:
	// a tensor.Pool.
	Allocator tensor.Allocator

	// Kinds are the kinds of devices, beside the CPU, on which tensors may come; the
	// pipes that NewContext makes need a channel for them. DeviceMap says to which device
	// of a worker a tensor goes in a call, and false where there is none. Answers go the
	// way back: from that device to the one of the Kinds here that the map sends there, if
	// it is only one. The map is asked for each call, and when a pipe is opened: it says
	// the same at all times. Tensors of the host go to the host. A tensor that came is
	// valid on the stream of its buffer.
	Kinds     []device.Kind
	DeviceMap func(worker string, src device.Device) (to device.Device, ok bool)

	Limits Limits

	// HandshakeTimeout bounds the opening of a pipe to another worker. Default 10 s.
	HandshakeTimeout time.Duration

	// Logger gets what no call can return. Default slog.Default().
	Logger *slog.Logger
}

// NoTimeout as a Config.Timeout is no limit.
const NoTimeout time.Duration = -1

const defaultTimeout = 60 * time.Second

// Limits bound what calls and other workers may take. A field of 0 takes the default.
//
// For a worker that has called functions that are served with Once, RememberedBytes and
// KeyBytes may be in use until it leaves the group, however long it has not called: by
// default 144 MiB for each other worker, most of which takes millions of calls with keys.
type Limits struct {
	// CallBytes bounds the calls on their way to one worker and not answered: their
	// messages, and 512 bytes for each. Further ones wait, but for those that handlers and
	// interceptors make. The smaller one of both ends counts. Default 256 MiB.
	CallBytes int

	// LargeBytes bounds the memory for the calls of one other worker whose tensors do not
	// travel within their message, which are those of more than 64 KiB, or 2 MiB through
	// shared memory, from before they are read until they are answered. Further ones
	// wait at the caller, but for those that handlers make. Default 1 GiB.
	LargeBytes int

	// AnswerBytes bounds the answers to one other worker that have not left, as those that
	// it does not take in: while there are as many no further request of that worker
	// begins. Those that have begun are still answered, of which MaxHandlers run at once.
	// Default 1 GiB.
	AnswerBytes int

	// Remembered bounds the number of answers that are kept for each other worker, see
	// Once. Default 1024.
	Remembered int

	// RememberedBytes bounds the memory of these answers for each other worker: their
	// messages and keys, and 512 bytes for each. A tensor of more than 64 KiB, or one of a
	// device, counts with the whole storage in which it lies, again in each answer. Beyond
	// the limit the oldest answers are evicted. Default 16 MiB.
	RememberedBytes int

	// KeyBytes bounds the memory for the keys of each other worker whose answers are not
	// kept, in some 64 bytes each: those of WithRetry until their calls have ended, those of
	// the application for RetryWindow to one and a half of that. Beyond the limit the oldest
	// keys of WithRetry are dropped, and requests with an older one, or one as old, fail with
	// ErrEvicted; calls with further keys of the application fail with ErrOverloaded. Default
	// 128 MiB.
	KeyBytes int

	// RetryWindow is how long after its last use a key of the application stays known: a
	// function does not run again for it. A worker that repeats calls with keys of its own
	// does so within that time, see Idempotent. A shorter window admits more keys a second,
	// see KeyBytes. Default 2 min.
	RetryWindow time.Duration

	// Greetings bounds the pipes whose other ends have not shown yet that they know the
	// Token of the group. With one more the oldest of them is turned away: a flood of those
	// who say nothing keeps no member out, who shows it in some round trips. As many members
	// may come at once. Default 1024.
	Greetings int

	// UnadmittedBytes bounds the memory for all that peers have sent which have not shown
	// yet that they know the Token, see pipe.Limits.UnadmittedBytes: those that hold most
	// are disconnected. It does not count the connections themselves, some 100 KiB each,
	// of which Greetings bounds the number. Default 64 MiB.
	UnadmittedBytes int

	// MessageBytes bounds the tensors and values of one message. Default 16 GiB, or what
	// an int holds.
	MessageBytes int

	// Codec bounds values, see codec.Limits.
	Codec codec.Limits
}

// multiplied is the most that a limit is of which there are multiples, with what is
// added to one: beyond that they would not be numbers any more.
const multiplied = math.MaxInt / (2 * nestedSlack)

func (l Limits) withDefaults() Limits {
	l.CallBytes = min(positive(l.CallBytes, 256<<20), multiplied)
	l.LargeBytes = min(positive(l.LargeBytes, 1<<30), multiplied)
	l.AnswerBytes = positive(l.AnswerBytes, 1<<30)
	l.Remembered = positive(l.Remembered, 1024)
	l.RememberedBytes = min(positive(l.RememberedBytes, 16<<20), multiplied)
	l.KeyBytes = positive(l.KeyBytes, 128<<20)
	l.RetryWindow = min(cmp.Or(l.RetryWindow, 2*time.Minute), maxLeft)
	l.Greetings = positive(l.Greetings, 1024)
	l.UnadmittedBytes = positive(l.UnadmittedBytes, 64<<20)
	l.MessageBytes = positive(l.MessageBytes, min(16<<30, math.MaxInt))
	return l
}

func positive(n, otherwise int) int {
	if n > 0 {
		return n
	}
	return otherwise
}

// check refuses what makes no sense.
func (c *Config) check() error {
	switch {
	case c.Timeout < 0 && c.Timeout != NoTimeout:
		return fmt.Errorf("%w: RPC Timeout must be non-negative, got %v", ErrConfig, c.Timeout)
	case c.MaxHandlers < 0:
		return fmt.Errorf("%w: MaxHandlers must be positive, got %d", ErrConfig, c.MaxHandlers)
	case c.WorldSize < 0:
		return fmt.Errorf("%w: WorldSize is %d", ErrConfig, c.WorldSize)
	case c.HandshakeTimeout < 0:
		return fmt.Errorf("%w: HandshakeTimeout is %v", ErrConfig, c.HandshakeTimeout)
	case min(c.Limits.CallBytes, c.Limits.LargeBytes, c.Limits.AnswerBytes, c.Limits.Remembered, c.Limits.RememberedBytes, c.Limits.KeyBytes, c.Limits.Greetings, c.Limits.UnadmittedBytes, c.Limits.MessageBytes) < 0:
		return fmt.Errorf("%w: a limit is negative", ErrConfig)
	case c.Limits.RetryWindow < 0:
		return fmt.Errorf("%w: Limits.RetryWindow is %v", ErrConfig, c.Limits.RetryWindow)
	case c.Store == nil && c.Rendezvous == "":
		return fmt.Errorf("%w: neither Rendezvous nor Store", ErrConfig)
	case c.Store != nil && c.Rendezvous != "":
		return fmt.Errorf("%w: both Rendezvous and Store", ErrConfig)
	}
	return nil
}

// setDefaults fills in what was left out.
func (c *Config) setDefaults() {
	if c.Group == "" {
		c.Group = "default"
	}
	if c.Registry == nil {
		c.Registry = codec.NewRegistry()
	}
	if c.Codec == nil {
		c.Codec = plainCodec{}
	}
	if c.Operators == nil {
		c.Operators = aten.Default()
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Allocator == nil {
		c.Allocator = tensor.NewPool(tensor.PoolOptions{})
	}
	if c.HandshakeTimeout == 0 {
		c.HandshakeTimeout = 10 * time.Second
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	c.MaxHandlers = positive(c.MaxHandlers, 256)
	c.Limits = c.Limits.withDefaults()
}
