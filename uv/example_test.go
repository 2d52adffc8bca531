package uv_test

import (
	"context"
	"fmt"
	"time"

	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// Two ends exchange frames over TCP, below any pipe. A transport is usually given to a pipe, as a
// pipe.TransportEntry.
func Example() {
	ctx := context.Background()
	t := uv.New(uv.WithUserTimeout(30 * time.Second)) // a peer that vanishes counts as dead then
	l, err := t.Listen(ctx, "127.0.0.1:0")
	must(err)
	defer l.Close()
	client, err := t.Dial(ctx, l.Addr())
	must(err)
	defer client.Close()
	server, err := l.Accept(ctx)
	must(err)
	defer server.Close()

	must(client.WriteFrames(transport.Frame{[]byte("one frame, "), []byte("two parts")}))
	size, err := server.NextFrame()
	must(err)
	body := make([]byte, size) // a program checks the size first
	must(server.ReadBody(body))
	fmt.Printf("%s\n", body)
	// Output: one frame, two parts
}

// The forms of addresses.
func ExampleParseAddr() {
	for _, text := range []string{"192.0.2.1:7000", "[2001:db8::1]:7000", "node17.example:7000", "300.0.0.1"} {
		a, err := uv.ParseAddr(text)
		fmt.Println(a.Host, a.Port, err != nil)
	}
	// Output:
	// 192.0.2.1 7000 false
	// 2001:db8::1 7000 false
	// node17.example 7000 false
	//  0 true
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
