package samehost_test

import (
	"bytes"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// with calls f while the context of d is current.
func (n *node) with(d device.Device, f func(driver.Driver)) {
	api := n.kind.Driver()
	c, err := api.PrimaryContextRetain(d.Index)
	require.NoError(n, err)
	require.NoError(n, api.Push(c))
	f(api)
	api.Pop()
	require.NoError(n, api.PrimaryContextRelease(d.Index))
}

func (n *node) stream(d device.Device) *cudaipc.Stream {
	s, err := n.kind.NewStream(d)
	require.NoError(n, err)
	return s.(*cudaipc.Stream)
}

// alloc returns memory of size bytes, valid on s.
func (n *node) alloc(size int, s *cudaipc.Stream) device.Buffer {
	b, err := n.kind.Alloc(s.Device(), size, s)
	require.NoError(n, err)
	return b
}

// ptr returns the address of b.
func ptr(b device.Buffer) driver.Ptr {
	m, offset := b.Memory()
	return m.(*cudaipc.Memory).Ptr() + driver.Ptr(offset)
}

func handleOf(b device.Buffer) driver.Stream { return b.Stream().(*cudaipc.Stream).Handle() }

// fill enqueues that all bytes of b, a multiple of four, are v.
func (n *node) fill(b device.Buffer, v byte) {
	n.with(b.Device(), func(d driver.Driver) {
		require.NoError(n, d.Fill(ptr(b), 0x01010101*uint32(v), b.Len()/4, handleOf(b)))
	})
}

// wrap returns a new allocation of the application, valid on s, which is freed at the end.
func (n *node) wrap(size int, s *cudaipc.Stream) device.Buffer {
	var p driver.Ptr
	n.with(s.Device(), func(d driver.Driver) {
		var err error
		p, err = d.Alloc(size)
		require.NoError(n, err)
	})
	n.atEnd = append(n.atEnd, func() {
		n.with(s.Device(), func(d driver.Driver) { require.NoError(n, d.Free(p)) })
	})
	b, err := n.kind.Wrap(p, size, s)
	require.NoError(n, err)
	return b
}

// filled returns new memory whose bytes are v once s has done its work.
func (n *node) filled(size int, s *cudaipc.Stream, v byte) device.Buffer {
	b := n.alloc(size, s)
	n.fill(b, v)
	return b
}

// bytesOf returns the bytes of b after the work of its stream. It makes none of the calls that the
// simulator numbers.
func (n *node) bytesOf(b device.Buffer) []byte {
	n.with(b.Device(), func(d driver.Driver) {
		var err error
		if len(n.host) < b.Len() {
			n.freeHost()
			n.host, err = d.AllocHost(b.Len())
			require.NoError(n, err)
		}
		require.NoError(n, d.Copy(driver.HostPtr(n.host), ptr(b), b.Len(), handleOf(b)))
		require.NoError(n, d.SyncStream(handleOf(b)))
	})
	return bytes.Clone(n.host[:b.Len()])
}

func (n *node) freeHost() {
	if n.host == nil {
		return
	}
	n.with(gpu(0), func(d driver.Driver) { require.NoError(n, d.FreeHost(n.host)) })
	n.host = nil
}

// isFilled reports whether all bytes of b are v, after the work of its stream.
func (n *node) isFilled(b device.Buffer, v byte) bool {
	return bytes.Equal(bytes.Repeat([]byte{v}, b.Len()), n.bytesOf(b))
}

// requireFilled requires that all bytes of b are v.
func (n *node) requireFilled(b device.Buffer, v byte) {
	if got := n.bytesOf(b); !bytes.Equal(bytes.Repeat([]byte{v}, b.Len()), got) {
		i := slices.IndexFunc(got, func(x byte) bool { return x != v })
		require.FailNow(n, "wrong bytes", "byte %d of %d is %#x, not %#x", i, len(got), got[i], v)
	}
}

// write sends a message of tensors for the target.
func (n *node) write(target device.Device, tensors ...device.Buffer) {
	require.NoError(n, n.Write(n.Context(), message(target, tensors...)))
}

func message(target device.Device, tensors ...device.Buffer) *pipe.Message {
	m := &pipe.Message{}
	for _, b := range tensors {
		m.Tensors = append(m.Tensors, pipe.Tensor{Buffer: b, TargetDevice: target})
	}
	return m
}

// read receives the next message into new memory, valid on s.
func (n *node) read(s *cudaipc.Stream) []device.Buffer {
	in := n.next()
	var into []device.Buffer
	for _, t := range in.Descriptor().Tensors {
		into = append(into, n.alloc(t.Length, s))
	}
	require.NoError(n, in.Read(n.Context(), pipe.Allocation{Tensors: into}))
	return into
}

// readInto receives the next message.
func (n *node) readInto(into ...device.Buffer) {
	require.NoError(n, n.next().Read(n.Context(), pipe.Allocation{Tensors: into}))
}

func (n *node) next() *pipe.Incoming {
	in, err := n.Next(n.Context())
	require.NoError(n, err)
	return in
}

// active returns the indices of the GPUs whose contexts are initialised.
func (n *node) active() (list []int) {
	count, err := n.kind.Driver().DeviceCount()
	require.NoError(n, err)
	for i := range count {
		active, err := n.kind.Driver().PrimaryContextActive(i)
		require.NoError(n, err)
		if active {
			list = append(list, i)
		}
	}
	return list
}
