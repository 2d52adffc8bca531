package store_test

import (
	"context"
	"fmt"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
)

// Two workers of one process publish their addresses in a store and read that of worker0. With a
// URL of tcp:// or env:// the workers may run on different machines.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	spaces := new(store.Spaces)
	for rank := range 2 {
		s, err := store.Open(ctx, "mem://group", store.Options{Rank: rank, WorldSize: 2, Spaces: spaces})
		if err != nil {
			fmt.Println(err)
			return
		}
		defer s.Close()
		key := fmt.Sprintf("addrs/worker%d", rank)
		if err := s.Set(ctx, key, fmt.Appendf(nil, "uv://10.0.0.%d:4000", rank+1)); err != nil {
			fmt.Println(err)
			return
		}
		addr, err := store.Await(ctx, s, "addrs/worker0")
		fmt.Println(string(addr), err)
	}
	// Output:
	// uv://10.0.0.1:4000 <nil>
	// uv://10.0.0.1:4000 <nil>
}
