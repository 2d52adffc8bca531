// Package cma is the channel between two processes of one machine that copies a
// tensor straight from the sender's memory into the receiver's, once, with
// process_vm_readv ("cross memory attach"). It works on Linux, between processes
// of the same user that the system lets read each other.
//
// In the compatible dialect its frames are those of TensorPipe's channel "cma".
// Over the first of two connections the sender announces each tensor by its
// process id and address, in the order of the messages; over the second, in the
// other direction, an empty frame says that it has been copied, and that is when
// the sender's done is called. That form has no word for a tensor that was given
// up, or of which the memory lies in pieces: an Abort closes the channel, and
// pieces are first gathered, up to [MaxGather].
//
// In the native dialect one stream carries offers, with the id of the transfer
// and a list of pieces, and what was copied or withdrawn; see frame.go. Transfers
// are copied in any order. A sender that gives up takes its memory back at once:
// with each offer goes the address of a word that says whether it still holds.
// The receiver reads the word after the tensor, and throws away what it has read
// if the word has changed.
//
// Large tensors are copied in chunks, by several goroutines at once and by turns
// with others that wait. Nothing can interrupt the system call that copies: where
// the peer's memory keeps it waiting, as memory that a process of its serves may, that
// tensor waits, and Close of the channel. The channel's other tensors go on as long as
// one of the Workers is left, which all channels of a factory share but for one that each
// has for itself; in the compatible dialect, where each tensor has its turn, those behind
// it wait too. Other channels go on.
//
// # Who may read whom
//
// That two processes have equal device descriptors does not mean that they can
// read each other: security modules, a process that is not dumpable or a filter
// of system calls may be in the way. Ends of this library therefore try it when
// a pipe is opened, see [channel.Prober].
//
// An end reads one process: that which was tried, and which the kernel names where
// the transport can tell ([transport.Identified]). With a peer of which neither is
// known it is the one that the first offer names.
package cma

import (
	"cmp"
	"context"
	"runtime"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/probe"
)

// Name is the channel's name in TensorPipe's handshake.
const Name = "cma"

// MaxGather is the size of a tensor, in bytes, that may be copied together at
// the sender because its memory lies in more pieces than an announcement has
// room for: one in the compatible dialect, 4096 in the native one. The Send of a
// larger one fails with [ErrScattered]. A pipe in the compatible dialect refuses a
// message with such a tensor.
const MaxGather = 64 << 20

// maxWorkers is as many goroutines as copy at once unless told otherwise: a few
// cores can read as fast as the memory delivers.
const maxWorkers = 4

// Options configure a factory. The zero value is what most programs want.
type Options struct {
	// Workers is the number of cores, at most, that copy at the same time for a
	// channel, where a further one copies enough to be worth its processor. All
	// channels of the factory share them but for one: with several at work there
	// is one core more for each further one, so that none waits for another's
	// peer. Default: all cores, but not more than four.
	Workers int

	// AllowAnyTracer matters where the security module Yama has ptrace_scope 1,
	// which many distributions set. There a process may be read only by its
	// ancestors, and by those that it names. With AllowAnyTracer this process
	// names all (PR_SET_PTRACER_ANY), as TensorPipe does: every process of the
	// same user can then read and change its memory, and trace it, as if Yama
	// were not there. Without it the channel is not viable under that scope.
	AllowAnyTracer bool

	// Root is a directory below which the files of /proc and /sys about
	// security modules are looked for. It is for tests that simulate another
	// machine; empty stands for the real one.
	Root string
}

// Factory makes channels; see [New].
type Factory struct {
	viable     func() error
	descriptor string        // valid once viable has said yes
	slots      chan struct{} // shared by all channels, see crew
}

var (
	_ channel.Factory = (*Factory)(nil)
	_ channel.Prober  = (*Factory)(nil)
)

// New returns a factory.
func New(o Options) *Factory {
	workers := cmp.Or(o.Workers, min(runtime.NumCPU(), maxWorkers))
	f := &Factory{slots: make(chan struct{}, max(workers-1, 0))}
	f.viable = probe.Once(Name, func() (err error) {
		f.descriptor, err = describe(o)
		return err
	})
	return f
}

// Viable says why not where processes cannot read each other's memory, as far as
// one process alone can tell.
func (f *Factory) Viable() error { return f.viable() }

// DeviceDescriptors names cpu:0, and which processes this one may hope to read:
// those with the same text. It is what TensorPipe makes of the same facts.
func (f *Factory) DeviceDescriptors() map[device.Device]string {
	if f.Viable() != nil {
		return nil
	}
	return map[device.Device]string{device.CPU(): f.descriptor}
}

// CanCommunicate reports whether the two processes run under the same kernel,
// in the same namespaces, for the same user and with the same rights.
func (f *Factory) CanCommunicate(local, remote string) bool { return local == remote }

// Connections is 2 in the compatible dialect, 1 in the native one.
func (f *Factory) Connections(native bool) int {
	if native {
		return 1
	}
	return 2
}

// New makes one end of a channel. It does not wait for the peer.
func (f *Factory) New(_ context.Context, link channel.Link, _ channel.Role) (channel.Channel, error) {
	err := channel.CheckLink(link, f.Connections(link.Native))
	process := 0
	if err == nil {
		if process, err = f.admit(link); err != nil {
			_ = channel.CloseLink(link)
		}
	}
	if err != nil {
		return nil, &channel.Error{Channel: Name, Peer: link.Peer, Err: err}
	}
	if link.Native {
		return newNativeEnd(link, process, f.slots), nil
	}
	return newEnd(link, process, f.slots), nil
}

// admit returns the process that is to be read, 0 if it is not known yet.
func (f *Factory) admit(link channel.Link) (process int, err error) {
	if err := f.Viable(); err != nil {
		return 0, err
	}
	return peerProcess(link)
}
