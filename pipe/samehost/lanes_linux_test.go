package samehost_test

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// striped is what a child says when its lanes carry tensors.
const striped = "striped"

// errNoLanes is the error of a conversation in which lanes have carried nothing.
var errNoLanes = errors.New("lanes carry nothing")

// stripe sends large tensors, where the pipe has lanes for them: until these carry
// them, for in the native dialect they are opened meanwhile, and then some more.
func stripe(ctx context.Context, p *pipe.Pipe) error {
	if name, _ := p.Plan().Channel(device.CPU(), device.CPU()); name != mpt.UVName {
		return nil
	}
	const most, more = 50, 3
	large := words()[1]
	for range most {
		if lanesCarry() {
			fmt.Println(striped)
			return askAgain(ctx, p, large, more)
		}
		if err := ask(ctx, p, large); err != nil {
			return err
		}
	}
	return errNoLanes
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
// this process. Of those that are no lanes only the bulk connection carries as much.
func lanesCarry() bool {
	const limit, descriptors = 1 << 20, 64
	busy := 0
	for fd := range descriptors {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil && info.Bytes_acked+info.Bytes_received > limit {
			busy++
		}
	}
	return busy > 1
}
