package rref_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// Account is a value that stays on its owner.
type Account struct {
	mu    sync.Mutex
	cents int
}

// Deposit adds cents to the account, and returns what it then has.
func (a *Account) Deposit(_ context.Context, cents int) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cents += cents
	return a.cents, nil
}

var (
	open    = agent.NewFunc[int, *Account]("example.open")
	donate  = agent.NewFunc[*rref.Ref[*Account], int]("example.donate")
	deposit = rref.NewMethod[*Account, int, int]("Deposit")
)

// exampleConfigs returns the configurations of a bank and two customers, which find each other by s
// and whose messages stay in this process.
func exampleConfigs(s store.Store) (configs []agent.Config) {
	network := mem.NewNetwork()
	for rank, name := range []string{"bank", "alice", "bob"} {
		configs = append(configs, agent.Config{
			Name: name, Rank: rank, WorldSize: 3, Store: s, Listen: []string{"mem://"}, Logger: slog.New(slog.DiscardHandler),
			NewContext: func(o pipe.Options) (*pipe.Context, error) {
				o.Transports = []pipe.TransportEntry{{Name: "mem", Transport: mem.New(network)}}
				o.Channels = []pipe.ChannelEntry{{Name: "xth", Factory: xth.New()}}
				return pipe.New(o)
			},
		})
	}
	return configs
}

// A value stays on the worker that made it. Another worker calls its methods, and passes the reference
// on to a third one.
func Example() {
	ctx := context.Background()
	s := store.NewMemory(store.Limits{})
	defer s.Close()
	var workers sync.WaitGroup
	for rank, c := range exampleConfigs(s) {
		c.Extensions = []agent.Extension{rref.New(rref.Options{Methods: rref.Methods{deposit.Serve((*Account).Deposit)}})}
		c.Funcs = agent.Funcs{
			open.Serve(func(_ context.Context, cents int) (*Account, error) { return &Account{cents: cents}, nil }),
			donate.Serve(func(ctx context.Context, account *rref.Ref[*Account]) (int, error) {
				defer account.Release(ctx)
				return deposit.Call(ctx, account, 5)
			}),
		}
		workers.Go(func() {
			a, err := agent.Join(ctx, c)
			if err != nil {
				fmt.Println(err)
				return
			}
			if rank == 1 {
				account := rref.Remote(ctx, a, "bank", open, 100) // returns at once
				n, err := deposit.Call(ctx, account, 20)
				fmt.Println(n, err)
				n, err = donate.Call(ctx, a, "bob", account)
				fmt.Println(n, err, account.OwnerName())
				_ = account.Release(ctx) // the bank drops the account
			}
			if err := a.Shutdown(ctx); err != nil { // an error also if a reference is left
				fmt.Println(err)
			}
		})
	}
	workers.Wait()

	// Output:
	// 120 <nil>
	// 125 <nil> bank
}
