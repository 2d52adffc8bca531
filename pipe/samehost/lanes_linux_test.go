package samehost_test

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// striped is what a child says when its lanes carry tensors.
const striped = "striped"

// errNoLanes is why a conversation ends in which lanes carry nothing.
var errNoLanes = errors.New("lanes carry nothing")

// stripe sends large tensors, where the pipe has lanes for them: until these carry
// them, and then some more.
func stripe(ctx context.Context, p *pipe.Pipe) error {
	if !hasLanes(p) {
		return nil
	}
	if err := openLanes(ctx, p); err != nil {
		return err
	}
	fmt.Println(striped)
	const more = 3
	return askAgain(ctx, p, words()[1], more)
}

func hasLanes(p *pipe.Pipe) bool {
	name, _ := p.Plan().Channel(device.CPU(), device.CPU())
	return name == mpt.UVName
}

// openLanes sends large tensors until the lanes carry them: in the native dialect they
// are opened meanwhile.
func openLanes(ctx context.Context, p *pipe.Pipe) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience.Limit, errNoLanes)
	defer cancel()
	large := words()[1]
	for !lanesCarry() {
		if err := ask(ctx, p, large); err != nil {
			return err
		}
	}
	return nil
}

func askAgain(ctx context.Context, p *pipe.Pipe, m *pipe.Message, times int) error {
	for range times {
		if err := ask(ctx, p, m); err != nil {
			return err
		}
	}
	return nil
}

// lanesCarry reports whether a mebibyte has gone over each of two connections of
// this process, and not over one a hundred times as much as over the other: the bulk
// connection carries tensors as well, and the session few bytes for each.
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
