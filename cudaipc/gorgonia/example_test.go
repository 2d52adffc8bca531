package gorgonia_test

import (
	"fmt"

	"gorgonia.org/cu"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/gorgonia"
)

// program is a program that works with cu.
type program struct {
	context cu.CUContext
	stream  cu.Stream
	ready   cu.Event     // made with cu.DisableTiming and cu.InterprocessEvent
	memory  cu.DevicePtr // of cu.MemAlloc
}

// share returns handles with which another process can wait for the present work of p.stream, and
// then use p.memory.
func (p *program) share(d driver.Driver) (memory, ready driver.IPCHandle, err error) {
	if err := d.Push(gorgonia.Context(p.context)); err != nil {
		return memory, ready, err
	}
	defer d.Pop()
	if err := d.Record(gorgonia.Event(p.ready), gorgonia.Stream(p.stream)); err != nil {
		return memory, ready, err
	}
	if memory, err = d.MemHandle(gorgonia.Ptr(p.memory)); err != nil {
		return memory, ready, err
	}
	ready, err = d.EventHandle(gorgonia.Event(p.ready))
	return memory, ready, err
}

// A program shares memory that it has allocated and filled with cu.
func Example() {
	d, err := gorgonia.New()
	if err != nil {
		fmt.Println("no CUDA here:", err)
		return
	}
	var p program // with objects of cu
	memory, ready, err := p.share(d)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("to the other process: %x %x\n", memory, ready)
}
