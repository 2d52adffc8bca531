package cma_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// sourceVar makes a process a source, with its parameters.
const sourceVar = "CMA_TEST_SOURCE"

func TestMain(m *testing.M) {
	if os.Getenv(sourceVar) == "" {
		leakcheck.Main(m)
	}
	if err := source(os.Getenv(sourceVar)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// inFlight is the number of tensors that a source sends concurrently.
const inFlight = 8

// source dials a listener, opens a channel to it, and sends the same tensor repeatedly until the
// other end closes. how has the address, whether the dialect is native, the size of the tensor in
// bytes and the kind of its pages, separated by spaces. It returns an error if how is malformed or
// the channel cannot be opened, and otherwise that of closing the channel.
func source(how string) error {
	var addr, pages string
	var native bool
	var size int
	if _, err := fmt.Sscan(how, &addr, &native, &size, &pages); err != nil {
		return err
	}
	memory, err := allocate(size, pages)
	if err != nil {
		return err
	}
	broken := make(chan error, 1)
	link := channel.Link{Native: native, Peer: "sink", Broken: func(err error) { broken <- err }, Logger: slog.New(slog.DiscardHandler)}
	f := cma.New(cma.Options{})
	for range f.Connections(native) {
		c, err := uv.New().Dial(context.Background(), addr)
		if err != nil {
			return err
		}
		link.Conns = append(link.Conns, c)
	}
	ch, err := f.New(context.Background(), link, channel.RoleConnect)
	if err != nil {
		return err
	}
	free := make(chan error, inFlight)
	for range inFlight {
		free <- nil
	}
	for id := uint64(0); <-free == nil; id++ {
		ch.Send(id, device.Bytes(memory), func(err error) { free <- err })
	}
	<-broken
	return ch.Close(nil)
}

// allocate returns size bytes that have been written to: in huge pages, which are never freed, if
// pages equals "huge", and otherwise from the heap.
func allocate(size int, pages string) ([]byte, error) {
	memory := make([]byte, size)
	if pages == "huge" {
		var err error
		memory, err = unix.Mmap(-1, 0, size+2<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return nil, err
		}
		if err := unix.Madvise(memory, unix.MADV_HUGEPAGE); err != nil {
			return nil, err
		}
		memory = memory[:size]
	}
	for i := range memory {
		memory[i] = byte(i % 251)
	}
	return memory, nil
}

// fromSource starts a process that runs the function source, and returns the end of a channel that
// receives its tensors. At the end of the test the channel is closed, and the process must exit
// with status 0.
func fromSource(t testing.TB, native bool, size int, pages string) channel.Channel {
	t.Helper()
	l, err := uv.New().Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	cmd := exec.Command(os.Args[0]) // exits when this end closes
	cmd.Env = append(os.Environ(), sourceVar+"="+fmt.Sprint(l.Addr(), " ", native, " ", size, " ", pages), "GORACE=atexit_sleep_ms=0")
	var said strings.Builder
	cmd.Stderr = &said
	require.NoError(t, cmd.Start())
	f := cma.New(cma.Options{})
	var conns []transport.Conn
	for range f.Connections(native) {
		c, err := l.Accept(t.Context())
		require.NoError(t, err)
		conns = append(conns, c)
	}
	ch, err := f.New(t.Context(), channel.Link{
		Native: native, Conns: conns, Peer: "source", Broken: func(error) {}, Logger: slog.New(slog.DiscardHandler),
	}, channel.RoleListen)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, ch.Close(nil))
		require.NoError(t, cmd.Wait(), said.String())
	})
	return ch
}
