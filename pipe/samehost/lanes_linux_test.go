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

// useLanes sends large tensors until the lanes carry them, and then some more. It does nothing if
// the pipe has no lanes.
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

// openLanes sends large tensors until the lanes carry them. In the native dialect lanes are opened
// concurrently.
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

// lanesCarry reports whether two TCP connections of this process have each carried more than a
// mebibyte, and neither more than a hundred times as much as the other. The bulk connection carries
// tensors too, and the session a few bytes for each.
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
