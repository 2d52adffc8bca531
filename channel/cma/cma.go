// Package cma is the channel between two processes of one machine that copies a tensor once, directly
// from the sender's memory into the receiver's, with process_vm_readv ("cross memory attach"). It works
// on Linux, between processes of the same user that the system permits to read each other's memory.
//
// In the compatible dialect its frames are those of TensorPipe's channel "cma". On the first of two
// connections the sender announces each tensor by its process id and address, in the order of the
// messages. On the second one the receiver replies with an empty frame after it has copied the tensor;
// the sender then calls done. This wire form can neither cancel a tensor nor describe memory in several
// pieces: an Abort closes the channel, and pieces are first gathered, up to [MaxGather].
//
// In the native dialect one stream carries descriptions, each with the id of a transfer and a list of
// pieces, and reports of copied and revoked tensors; see native_frame.go. Tensors are copied in any
// order. A sender that aborts may reuse its memory at once: each description has the address of a
// validity word in the sender's memory. The receiver reads this word after it has copied the tensor,
// and discards the copy if the word has changed.
//
// Large tensors are copied in chunks by several goroutines, which take chunks of different tensors in
// turn. Nothing can interrupt the system call that copies. If the peer's memory blocks it, which
// happens for example with memory that a user-space process serves, this tensor waits, and so does
// Close of the channel. The other tensors of the channel continue while one of the Workers is left; all
// channels of a factory share these, except one that each channel has to itself. In the compatible
// dialect, where tensors are copied in order, later tensors wait too. Other channels continue.
//
// # Permission
//
// Two processes with equal device descriptors may still be unable to read each other: security modules,
// a process that is not dumpable, or a system call filter may prevent it. Ends of this library
// therefore test it while a pipe is being opened, see [channel.Prober].
//
// An end reads only one process: the one that was probed, which must be the one that the kernel reports
// if the transport knows it ([transport.Identified]). If neither is known it is the process that the
// first description names.
package cma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"strconv"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/probe"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Name is the channel's name in TensorPipe's handshake.
const Name = "cma"

// MaxGather is the maximum size in bytes of a tensor that the sender gathers into one buffer because
// its memory consists of more pieces than an announcement can list: one in the compatible dialect, 4096
// in the native one. The Send of a larger one fails with [ErrScattered]. A pipe in the compatible
// dialect rejects a message with such a tensor.
const MaxGather = 64 << 20

// maxWorkers is the default limit of concurrent copies: a few cores saturate the memory bandwidth.
const maxWorkers = 4

// Options configure a factory. The zero value suits most programs.
type Options struct {
	// Workers is the maximum number of cores that copy concurrently for one channel; fewer copy if a
	// further core would add little throughput. All channels of the factory share these workers, except
	// one that each channel has to itself, so that no channel waits for the peer of another. With
	// several active channels one more core may be used for each further channel. Default: all cores,
	// at most four.
	Workers int

	// AllowAnyTracer is for systems where the security module Yama sets ptrace_scope to 1, as many
	// distributions do. A process can then be read only by its ancestors and by processes that it
	// names. With AllowAnyTracer this process names all processes (PR_SET_PTRACER_ANY), as TensorPipe
	// does: every process of the same user can then read and change its memory, and trace it, as if
	// Yama were disabled. Without it the channel is not viable under that scope.
	AllowAnyTracer bool

	// Root is the directory below which the files of /proc and /sys about security modules are read. It
	// is for tests that simulate another machine; empty stands for the real root.
	Root string
}

// Factory creates channels; see [New].
type Factory struct {
	// viable determines descriptor at the first call. It returns nil, or why the channel does not work
	// in this process.
	viable     func() error
	descriptor string        // valid after viable has returned nil
	slots      chan struct{} // shared by all channels, see copyPool
}

var (
	_ channel.Factory = (*Factory)(nil)
	_ channel.Prober  = (*Factory)(nil)
)

// New returns a factory with the options o. It does not test the system: the first call of Viable,
// DeviceDescriptors or New of the factory does.
func New(o Options) *Factory {
	workers := cmp.Or(o.Workers, min(runtime.NumCPU(), maxWorkers))
	f := &Factory{slots: make(chan struct{}, max(workers-1, 0))}
	f.viable = probe.Once(Name, func() (err error) {
		f.descriptor, err = deviceDescriptor(o)
		return err
	})
	return f
}

// Viable returns nil if this process can read the memory of others and be read by them, as far as
// one process can determine that. Otherwise the error is the reason, and matches
// [transport.ErrNotSupported]. The system is tested once per factory; later calls return the same
// result.
func (f *Factory) Viable() error { return f.viable() }

// DeviceDescriptors returns a new map with the descriptor of cpu:0, or nil if the channel is not
// viable. Processes with equal descriptors can probably read each other's memory. The form of the
// descriptor is that of TensorPipe.
func (f *Factory) DeviceDescriptors() map[device.Device]string {
	if f.Viable() != nil {
		return nil
	}
	return map[device.Device]string{device.CPU(): f.descriptor}
}

// CanCommunicate reports whether the descriptors are equal: both processes run under the same kernel,
// in the same namespaces, as the same user and with the same capabilities.
func (f *Factory) CanCommunicate(local, remote string) bool { return local == remote }

// Connections returns the number of connections that the channel needs: 1 if native is true, for
// the native dialect, and otherwise 2.
func (f *Factory) Connections(native bool) int {
	if native {
		return 1
	}
	return 2
}

// New returns this process's end of a channel, which owns the connections and the Host of link. It
// does not wait for the peer. It fails if link has the wrong number of connections, the channel is
// not viable, link.Offer is malformed, or link.Offer names another process than the kernel reports
// for the peer. It has then closed the connections and the Host of link, and the error is a
// [*channel.Error].
func (f *Factory) New(_ context.Context, link channel.Link, _ channel.Role) (channel.Channel, error) {
	err := channel.CheckLink(link, f.Connections(link.Native))
	process := 0
	if err == nil {
		if err = f.Viable(); err == nil {
			process, err = peerProcess(link)
		}
		if err != nil {
			_ = channel.CloseLink(link)
		}
	}
	if err != nil {
		return nil, &channel.Error{Channel: Name, Peer: link.Peer, Err: err}
	}
	if link.Native {
		return newNative(link, process, f.slots), nil
	}
	return newEnd(link, process, f.slots), nil
}

// ErrScattered is the error of a Send whose memory consists of too many pieces and is too large to be
// gathered, see [MaxGather]. In the compatible dialect it closes the channel.
var ErrScattered = errors.New("too large a tensor in too many pieces: give it as fewer pieces")

// ReadError reports that the memory of another process could not be read. Err is the system's error:
// EPERM if it is forbidden, ENOSYS if a filter rejects the call, EFAULT if the memory is not mapped in
// one of the two processes, ESRCH if the process does not exist. Errors of transfers also match
// [channel.ErrForbidden] or [channel.ErrCopy], except for ESRCH.
type ReadError struct {
	PID int
	Err error
}

func (e *ReadError) Error() string {
	return "read the memory of process " + strconv.Itoa(e.PID) + ": " + e.Err.Error()
}

// Unwrap returns e.Err, the system's error.
func (e *ReadError) Unwrap() error { return e.Err }

// wrapError returns err, which must not be nil, as a [*channel.Error] with the channel's name and
// peer. If err matches transport.ErrFrame, the result also matches channel.ErrProtocol. If err
// contains a [*ReadError], the result also matches channel.ErrForbidden or channel.ErrCopy, unless
// the process that was read does not exist any more.
func wrapError(peer string, err error) error {
	var read *ReadError
	switch {
	case errors.Is(err, transport.ErrFrame):
		err = protocolError("%w", err)
	case errors.As(err, &read) && !noSuchProcess(err):
		err = fmt.Errorf("%w: %w", read.kind(), err)
	}
	return &channel.Error{Channel: Name, Peer: peer, Err: err}
}

// kind returns channel.ErrForbidden if the system forbids the read or does not support it, and
// otherwise channel.ErrCopy.
func (e *ReadError) kind() error {
	if errors.Is(e, fs.ErrPermission) || errors.Is(e, errors.ErrUnsupported) {
		return channel.ErrForbidden
	}
	return channel.ErrCopy
}

// protocolError returns an error that matches channel.ErrProtocol, because the peer has violated
// the protocol. format and args make its text as in fmt.Errorf.
func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{channel.ErrProtocol}, args...)...)
}
