package gorgonia_test

import (
	"fmt"

	"gorgonia.org/cu"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/gorgonia"
)

// A program with a stream and an event of cu shares its memory with another process.
func Example() {
	d, err := gorgonia.New()
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := share(d); err != nil {
		fmt.Println(err)
	}
}

func share(d driver.Driver) error {
	ctx, err := cu.Device(0).RetainPrimaryCtx()
	if err != nil {
		return err
	}
	if err := d.Push(gorgonia.Context(ctx)); err != nil {
		return err
	}
	defer d.Pop()
	stream, err := cu.MakeStream(cu.NonBlocking)
	if err != nil {
		return err
	}
	ready, err := cu.MakeEvent(cu.DisableTiming | cu.InterprocessEvent)
	if err != nil {
		return err
	}
	p, err := cu.MemAlloc(1 << 20)
	if err != nil {
		return err
	}
	if err := cu.MemsetD32Async(p, 1, 1<<18, stream); err != nil {
		return err
	}
	if err := ready.Record(stream); err != nil {
		return err
	}
	memory, err := d.MemHandle(gorgonia.Ptr(p))
	if err != nil {
		return err
	}
	event, err := d.EventHandle(gorgonia.Event(ready))
	if err != nil {
		return err
	}
	fmt.Printf("send these to the other process: %x %x\n", memory, event)
	return nil
}
