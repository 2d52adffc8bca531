package pipe_test

import (
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// A message with a tensor. The receiver sees its description first, and then chooses the memory
// that the bytes are read into.
func Example() {
	ctx := context.Background()
	c, client, server := openExamplePipe(ctx)
	defer c.Close()
	write := client.WriteAsync(ctx, &pipe.Message{
		Metadata: []byte("step 1"),
		Tensors:  []pipe.Tensor{{Buffer: device.Bytes([]byte("weights")), Metadata: []byte("u8[7]")}},
	})

	in, err := server.Next(ctx)
	check(err)
	d := in.Descriptor()
	own := make([]byte, 16)
	check(in.Read(ctx, pipe.Allocation{Tensors: []device.Buffer{device.Bytes(own[4 : 4+d.Tensors[0].Length])}}))
	check(write.Wait(ctx)) // the memory of the sender is free again
	fmt.Printf("%s, %s: %q\n", d.Metadata, d.Tensors[0].Metadata, own)
	// Output: step 1, u8[7]: "\x00\x00\x00\x00weights\x00\x00\x00\x00\x00"
}

// The plan has the path that was chosen.
func ExamplePipe_Plan() {
	ctx := context.Background()
	c, client, _ := openExamplePipe(ctx)
	defer c.Close()
	channel, _ := client.Plan().Channel(device.CPU(), device.CPU())
	fmt.Println(client.Plan().Transport, channel)
	// Output: mem xth
}
