package samehost_test

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// striped is printed by a child once its lanes carry tensors.
const striped = "striped"

// errNoLanes is returned if lanes do not carry tensors within the limit.
var errNoLanes = errors.New("lanes carry nothing")

// useLanes sends large tensors until the pipe's lanes carry them, prints the line striped, and
// sends three more. It returns the first error. If the pipe has no lanes it does nothing.
func useLanes(ctx context.Context, p *pipe.Pipe) error {
	if !hasLanes(p) {
		return nil
	}
	if err := openLanes(ctx, p); err != nil {
		return err
	}
	fmt.Println(striped)
	const more = 3
	return repeatSend(ctx, p, testMessages()[1], more)
}

func hasLanes(p *pipe.Pipe) bool {
	name, _ := p.Plan().Channel(device.CPU(), device.CPU())
	return name == mpt.UVName
}

// openLanes sends large tensors and compares their echoes until the lanes carry them. In the native
// dialect this takes several, because lanes are opened concurrently. If ctx ends first or the lanes
// take too long, it returns an error.
func openLanes(ctx context.Context, p *pipe.Pipe) error {
	ctx, cancel := context.WithTimeoutCause(ctx, testwait.Limit, errNoLanes)
	defer cancel()
	large := testMessages()[1]
	for !lanesCarry() {
		if err := sendAndCompare(ctx, p, large); err != nil {
			return err
		}
	}
	return nil
}

func repeatSend(ctx context.Context, p *pipe.Pipe, m *pipe.Message, times int) error {
	for range times {
		if err := sendAndCompare(ctx, p, m); err != nil {
			return err
		}
	}
	return nil
}

// lanesCarry reports whether the lanes of this process carry tensors: two of its TCP connections
// have each carried more than a MiB, and neither more than a hundred times as much as the other.
// The ratio excludes a bulk connection beside a session, which carries a few bytes for each tensor.
func lanesCarry() bool {
	const limit, descriptors = 1 << 20, 1024
	var first, second uint64
	for fd := range descriptors {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			continue
		}
		n := info.Bytes_acked + info.Bytes_received
		second = max(second, min(n, first))
		first = max(first, n)
	}
	return second > limit && second > first/100
}
