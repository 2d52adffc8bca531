package agent

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/aten"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Config describes a worker and the group that it joins.
type Config struct {
	// Name is the worker's name: 1 to 127 characters of A-Z, a-z, 0-9, '-', '_' and ':',
	// unique in the group.
	Name string

	// Rank is the worker's number in a group of WorldSize workers, from 0 on. With a WorldSize
	// of 0 the group is dynamic: workers come and go, and a negative Rank is replaced by the
	// lowest free one. For env:// both come from the environment. Rank 0 serves the store of a
	// tcp:// Rendezvous, unless StoreOptions.Join is set; others join it.
	Rank      int
	WorldSize int

	// Replace lets this worker replace one of the same name in a dynamic group that died
	// without leaving. The other workers treat it as a new worker.
	Replace bool

	// Client makes this worker a client of a dynamic group: WorkerInfos and Workers leave it
	// out, and Barrier and AllGather without workers do not wait for it, so that clients may
	// join, leave and die at any time. It can be called by its name or rank like any worker. A
	// client that died is removed by a worker that had a pipe to it and cannot open another; it
	// must therefore listen at an address that the workers reach. A client that died before it
	// had any pipe stays in the list and keeps its name and rank. With a WorldSize the error of
	// Join matches ErrConfig.
	Client bool

	// Rendezvous is the URL of the store by which workers find each other, see store.Open.
	// StoreOptions are its options; Rank and WorldSize in them are set by Join. Instead, Store
	// may be an open store, which the agent does not close.
	Rendezvous   string
	StoreOptions store.Options
	Store        store.Store

	// Group is the name of the group; one store may hold several. Default "default".
	Group string

	// Listen is the URLs at which this worker listens, see pipe.Context.Listen. Default: shared
	// memory, and a free TCP port of the address from which this worker reaches the store of
	// Rendezvous. That is the loopback interface if the store is on it, or is no TCP store.
	//
	// For a wildcard such as uv://0.0.0.0:0 the other workers learn the address from which this
	// one reaches the store, and then its other addresses; they dial them in this order. If the
	// address is unknown, because this worker serves the store at a wildcard or the store is no TCP
	// store, the error of Join matches ErrConfig.
	Listen []string

	// Token is a secret of the group. It is never sent; a process that cannot prove that it
	// knows the token is rejected. Without it, and without TLS set up in NewContext, any process
	// that reaches an address can call the functions served there, and any process that reaches
	// the store can become a member. Listening at an address that its transport does not declare
	// as local (transport.Local), or serving the store of Rendezvous beyond the loopback
	// interface, is then an error unless Insecure is set; Insecure logs a warning.
	Token    []byte
	Insecure bool

	// TLS makes the worker use TLS 1.3 for TCP, see tensorpipe.WithTLS; all else is as by default.
	// Without a Token its ClientAuth must be tls.RequireAndVerifyClientCert, so that only workers
	// with a certificate are admitted. The certificates must be valid for ServerName or, if that
	// is empty, for the hosts in the URLs that workers publish. TLS does not cover two things:
	// shared memory, which is offered beside it to workers of this machine and this user, unless
	// Listen leaves it out; and the store, whose protocol stays plaintext.
	TLS *tls.Config

	// NewContext makes the pipe context, from options with the name, the limits, the device
	// kinds and the logger. Default: tensorpipe.NewContext, or tensorpipe.WithTLS with TLS, with a
	// bound for TCP: a worker that has not acknowledged sent bytes for 30 s, or has a full receive
	// window for as long, counts as dead; see uv.WithUserTimeout. Secure declares that all its
	// transports encrypt and authenticate their peers. TLS and NewContext exclude each other.
	NewContext func(pipe.Options) (*pipe.Context, error)
	Secure     bool

	// Funcs are the functions that this worker serves. Handlers serve messages of other types,
	// by type; types that begin with "agent." are reserved.
	Funcs    Funcs
	Handlers map[string]Handler

	// Operators are the operators that Op calls. The table must not change after Join.
	// Default: aten.Default().
	Operators *aten.Table

	Interceptors []Interceptor

	// Extensions are subsystems of this worker, which add their own functions, handlers and
	// interceptors, see Extension.
	Extensions []Extension

	// FaultHook is for tests only. It is called before each message of a call is sent, and
	// returns the fault that is injected instead, see package faulty. It is called from any
	// goroutine and must not block. Default: all messages are sent.
	FaultHook func(*Message) Fault

	// Registry has the types and errors that messages may contain. Default: an empty one.
	Registry *codec.Registry

	// Codec encodes arguments and results. Default: package codec.
	Codec Codec

	// Timeout is the timeout of calls that have none of their own. Default 60 s; NoTimeout
	// is none.
	Timeout time.Duration

	// MaxHandlers bounds the handlers that run at once. Handlers do not count while they wait
	// for their own calls, or with their context for a future or the store. Default 256.
	MaxHandlers int

	// ProfileLabels sets the profile labels "function" and "caller" for handlers, which costs
	// some allocations per call. Short handlers have no labels.
	ProfileLabels bool

	// Allocator allocates host memory for received tensors. If it fails or panics, the call
	// fails. Like a short handler it may run on the goroutine of a caller. Default: a
	// tensor.Pool.
	Allocator tensor.Allocator

	// Kinds are the device kinds beside the CPU on which tensors may be received; the context
	// of NewContext needs a channel for each. The tensors of a message are valid on streams of
	// the message, one for each device. The context of a handler has these (device.StreamFrom), and
	// others for the remaining devices of this worker. The streams of the context of a call wait for
	// its results. Tensors are sent after the present work of the streams on which they are valid,
	// and of those in the context of the call or the handler; the host waits for neither.
	//
	// DeviceMaps has, by the name of a worker, the devices there to which tensors on devices here are
	// sent in calls; see also SetDeviceMap. No two devices here map to the same. Replies use the
	// inverse. Tensors in host memory stay there, unless a map has device.CPU()
	// as a key. Devices are the devices that this worker uses; by default those in its own maps and in
	// those of others to it.
	//
	// The devices and maps of all workers are known to all. The error of Join matches ErrDeviceMaps if
	// they do not fit together.
	Kinds      []device.Kind
	Devices    []device.Device
	DeviceMaps map[string]DeviceMap

	Limits Limits

	// JoinTimeout bounds Join, which waits for the store and, in a static group, for all workers.
	// Default 5 min; NoTimeout is none, so that only the context of Join bounds it.
	JoinTimeout time.Duration

	// HandshakeTimeout bounds the opening of a pipe to another worker. Default 10 s.
	HandshakeTimeout time.Duration

	// Events are functions that report calls, requests, pipes and members, for traces and metrics.
	// Those of the pipes are pipe.Options.Events, which NewContext can set.
	Events *Events

	// Logger gets errors that no call returns. Default slog.Default().
	Logger *slog.Logger
}

// NoTimeout as Config.Timeout means that calls have no timeout unless an option sets one, and as
// Config.JoinTimeout that only its context bounds Join.
const NoTimeout time.Duration = -1

const (
	defaultTimeout     = 60 * time.Second
	defaultJoinTimeout = 5 * time.Minute
)

// Limits bound the memory and the work of calls and of other workers. A field of 0 takes the
// default.
//
// For a worker that has called functions served WithOnce, RememberedBytes and KeyBytes may
// be in use until it leaves the group: by default up to 144 MiB for each other worker, most of it
// only after millions of calls with keys.
type Limits struct {
	// CallBytes bounds the pending calls to one worker: their messages, and 512 bytes for each.
	// Further calls wait, except those of handlers and interceptors. The smaller limit of
	// both ends applies. Default 256 MiB.
	CallBytes int

	// LargeBytes bounds the memory for calls of one other worker whose tensors are not inline:
	// those of more than 64 KiB, or 2 MiB through shared memory. It is charged from before the
	// tensors are read until the call is answered; over TCP up to 8 MiB of them may arrive
	// before, see pipe.Options.NoEager. Further calls wait at the caller, except those of
	// handlers. Default 1 GiB.
	LargeBytes int

	// AnswerBytes bounds the unsent replies to one other worker, for example one that does not
	// read. While they exceed it no further request of that worker is started; those that have
	// started, at most MaxHandlers at once, are still answered. Default 1 GiB.
	AnswerBytes int

	// MaxStreams bounds the streams that one other worker has open to this one; further ones fail
	// with ErrOverloaded. Each takes one of MaxHandlers. StreamBytes is the window of a stream for
	// each direction in which this worker receives: the bytes that the other end may send before
	// values are used here, where each message, of one value or several small ones, counts 512 bytes
	// in addition. The least is 64 KiB. One value may exceed the window: values of more than 64 KiB,
	// or 2 MiB through shared memory, stay at the sender until they are received, except up to 8 MiB
	// of a connection over TCP (pipe.Options.NoEager), and count for the LargeBytes of the worker that is called. At the sender they take at most a quarter of its
	// LargeBytes, or one of them more. So the streams of one other worker hold at most MaxStreams *
	// (StreamBytes + 2 MiB) of values that were not received, and those 8 MiB. Defaults 64 and 1 MiB.
	MaxStreams  int
	StreamBytes int

	// MaxRemembered bounds the number of results kept for each other worker, see WithOnce.
	// Default 1024.
	MaxRemembered int

	// RememberedBytes bounds the memory of these results for each other worker: their
	// messages and keys, and 512 bytes for each. A tensor of more than 64 KiB, or one on a
	// device, counts with its whole storage, again in each result. Beyond the limit the
	// oldest results are evicted. Default 16 MiB.
	RememberedBytes int

	// KeyBytes bounds the memory for keys of each other worker whose results are not kept, about
	// 64 bytes each. Keys of WithRetry are kept until their calls have ended, keys of the
	// application for 1 to 1.5 times RetryWindow. Beyond the limit the oldest keys of WithRetry
	// are evicted, and requests with such a key or an older one fail with ErrEvicted; calls with
	// further keys of the application fail with ErrOverloaded. Default 128 MiB.
	KeyBytes int

	// RetryWindow is the time after its last use for which a key of the application is remembered,
	// so that the function does not run again for it. A worker must repeat calls with its own keys
	// within that time, see WithIdempotencyKey. A shorter window admits more keys per second, see
	// KeyBytes. Default 2 min.
	RetryWindow time.Duration

	// MaxHandshakes bounds the pipes whose peers have not proved yet that they know the Token of
	// the group. Beyond it the oldest is rejected, since a member proves it within a few round
	// trips. In a static group it is at least WorldSize. Default 1024.
	MaxHandshakes int

	// UnadmittedBytes bounds the memory for data of peers that have not proved yet that they
	// know the Token, see pipe.Limits.UnadmittedBytes: the peers that hold the most are
	// disconnected. It does not include the connections themselves, about 100 KiB each, whose
	// number MaxHandshakes bounds. Default 64 MiB.
	UnadmittedBytes int

	// MessageBytes bounds the tensors and values of one message. Default 16 GiB, or the
	// largest int.
	MessageBytes int

	// Codec bounds values, see codec.Limits.
	Codec codec.Limits
}

// maxStreamWindow bounds Limits.StreamBytes, so that it is a valid credit and an int.
const maxStreamWindow = 1 << 30

// maxScaledLimit bounds limits that are multiplied, so that the products do not overflow.
const maxScaledLimit = math.MaxInt / (2 * nestedOvercommit)

func (l Limits) withDefaults() Limits {
	l.CallBytes = min(positive(l.CallBytes, 256<<20), maxScaledLimit)
	l.LargeBytes = min(positive(l.LargeBytes, 1<<30), maxScaledLimit)
	l.AnswerBytes = positive(l.AnswerBytes, 1<<30)
	l.MaxStreams = positive(l.MaxStreams, 64)
	l.StreamBytes = min(max(positive(l.StreamBytes, 1<<20), 2*wire.StreamThreshold), maxStreamWindow)
	l.MaxRemembered = positive(l.MaxRemembered, 1024)
	l.RememberedBytes = min(positive(l.RememberedBytes, 16<<20), maxScaledLimit)
	l.KeyBytes = positive(l.KeyBytes, 128<<20)
	l.RetryWindow = min(cmp.Or(l.RetryWindow, 2*time.Minute), wire.MaxTimeout)
	l.MaxHandshakes = positive(l.MaxHandshakes, 1024)
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

// check returns nil, or an error that matches ErrConfig if a number of c is out of range, the TLS
// settings are invalid, or c does not have exactly one of Rendezvous and Store. Names, functions,
// handlers and addresses are checked later, by Join.
func (c *Config) check() error {
	switch {
	case c.Timeout < 0 && c.Timeout != NoTimeout:
		return &ConfigError{Field: "Timeout", Value: c.Timeout}
	case c.JoinTimeout < 0 && c.JoinTimeout != NoTimeout:
		return &ConfigError{Field: "JoinTimeout", Value: c.JoinTimeout}
	case c.MaxHandlers < 0:
		return fmt.Errorf("%w: MaxHandlers must be positive, got %d", ErrConfig, c.MaxHandlers)
	case c.WorldSize < 0:
		return fmt.Errorf("%w: WorldSize is %d", ErrConfig, c.WorldSize)
	case c.HandshakeTimeout < 0:
		return fmt.Errorf("%w: HandshakeTimeout is %v", ErrConfig, c.HandshakeTimeout)
	case min(c.Limits.CallBytes, c.Limits.LargeBytes, c.Limits.AnswerBytes, c.Limits.MaxStreams, c.Limits.StreamBytes, c.Limits.MaxRemembered, c.Limits.RememberedBytes, c.Limits.KeyBytes, c.Limits.MaxHandshakes, c.Limits.UnadmittedBytes, c.Limits.MessageBytes) < 0:
		return fmt.Errorf("%w: a limit is negative", ErrConfig)
	case c.Limits.RetryWindow < 0:
		return fmt.Errorf("%w: Limits.RetryWindow is %v", ErrConfig, c.Limits.RetryWindow)
	case c.TLS != nil && c.NewContext != nil:
		return fmt.Errorf("%w: both TLS and NewContext", ErrConfig)
	case c.TLS != nil && len(c.TLS.Certificates) == 0 && c.TLS.GetCertificate == nil && c.TLS.GetConfigForClient == nil:
		return fmt.Errorf("%w: TLS has no certificate", ErrConfig)
	case c.TLS != nil && len(c.Token) == 0 && !c.Insecure && c.TLS.ClientAuth != tls.RequireAndVerifyClientCert:
		return fmt.Errorf("%w: TLS admits workers without a certificate: set its ClientAuth to tls.RequireAndVerifyClientCert, or set Token", ErrConfig)
	case c.Store == nil && c.Rendezvous == "":
		return fmt.Errorf("%w: neither Rendezvous nor Store", ErrConfig)
	case c.Store != nil && c.Rendezvous != "":
		return fmt.Errorf("%w: both Rendezvous and Store", ErrConfig)
	}
	return nil
}

// setDefaults replaces zero fields of c, and of c.Limits, by their defaults, and lowers limits that
// are too large to calculate with. It sets Secure if TLS requires certificates of clients. Listen
// and NewContext stay as they are: method listen of the agent applies their defaults.
func (c *Config) setDefaults() {
	if c.Group == "" {
		c.Group = "default"
	}
	c.Secure = c.Secure || c.TLS != nil && c.TLS.ClientAuth == tls.RequireAndVerifyClientCert
	if c.Registry == nil {
		c.Registry = codec.NewRegistry()
	}
	if c.Codec == nil {
		c.Codec = defaultCodec{}
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
	if c.JoinTimeout == 0 {
		c.JoinTimeout = defaultJoinTimeout
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	c.MaxHandlers = positive(c.MaxHandlers, 256)
	c.Limits = c.Limits.withDefaults()
}
