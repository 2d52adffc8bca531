package transport_test

import (
	"context"
	"fmt"
	"io"

	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// The life of a connection of any transport, here of the one within a process: frames arrive whole
// and in order, and after CloseWrite the other end reads the frames sent before, then io.EOF.
func Example() {
	ctx := context.Background()
	var t transport.Transport = mem.New(nil)
	l, err := t.Listen(ctx, "")
	must(err)
	defer l.Close()
	client, err := t.Dial(ctx, l.Addr())
	must(err)
	defer client.Close()
	server, err := l.Accept(ctx)
	must(err)
	defer server.Close()

	go func() {
		must(client.WriteFrames(transport.Frame{[]byte("first")}, transport.Frame{[]byte("sec"), []byte("ond")}))
		must(client.CloseWrite())
	}()
	for {
		size, err := server.NextFrame()
		if err == io.EOF {
			break
		}
		must(err)
		body := make([]byte, size) // a program checks the size first
		must(server.ReadBody(body))
		fmt.Printf("%s\n", body)
	}
	// Output:
	// first
	// second
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
