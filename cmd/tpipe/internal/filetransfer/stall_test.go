package filetransfer

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/simnet"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// inVirtualTime runs test as a subtest in each dialect, in a synctest bubble, where time is
// virtual.
func inVirtualTime(t *testing.T, test func(t *testing.T, dialect pipe.Dialect)) {
	eachDialect(t, func(t *testing.T, dialect pipe.Dialect) {
		synctest.Test(t, func(t *testing.T) { test(t, dialect) })
	})
}

// endsOver returns both ends of a new pipe over the transport over, in that dialect. They are
// closed when the test ends. Unlike ends it works in a synctest bubble.
func endsOver(t *testing.T, dialect pipe.Dialect, over transport.Transport) (sender, receiver *pipe.Pipe) {
	t.Helper()
	options := pipe.Options{
		Name: "test", Limits: Limits(), Dialect: dialect,
		Transports: []pipe.TransportEntry{{Name: "mem", Transport: over}},
		Channels:   []pipe.ChannelEntry{{Name: basic.Name, Factory: basic.New()}},
	}
	server, err := pipe.New(options)
	require.NoError(t, err)
	client, err := pipe.New(options)
	require.NoError(t, err)
	t.Cleanup(func() {
		client.Close()
		server.Close()
	})
	l, err := server.Listen(t.Context(), "mem://")
	require.NoError(t, err)
	sender, err = client.Dial(t.Context(), l.URLs()[0])
	require.NoError(t, err)
	receiver, err = l.Accept(t.Context())
	require.NoError(t, err)
	return sender, receiver
}

// sendOver sends the files at paths to the store s through a new pipe over the transport over. w
// watches the receiver. It returns the errors of Send and of Receive.
func sendOver(t *testing.T, dialect pipe.Dialect, over transport.Transport, s *Store, w Watcher, paths ...string) (sent, received error) {
	t.Helper()
	list, err := Gather(paths, false)
	require.NoError(t, err)
	sender, receiver := endsOver(t, dialect, over)
	got := startReceive(t.Context(), s, receiver, w)
	if sent = Send(t.Context(), sender, list, SendOptions{}, NoWatcher{}); sent == nil {
		require.NoError(t, sender.Close())
	}
	return sent, <-got
}

// TestStalledSender checks that a sender that stops, after any of its messages, fails after
// StallTimeout and not before. Its slot and its names are then free, its part files removed, and it
// gets the reason.
func TestStalledSender(t *testing.T) { inVirtualTime(t, testStalledSender) }

func testStalledSender(t *testing.T, dialect pipe.Dialect) {
	stops := []func(s *script){
		(*script).offersTwo,
		func(s *script) { s.goodHead(0) },
		func(s *script) { s.goodChunk(0) },
		func(s *script) { s.goodHead(1) },
	}
	second := filepath.Join(t.TempDir(), "sub", "b.safetensors")
	writeFile(t, second, heap("second", 5))
	for i := range stops {
		store, dir := openStore(t, StoreOptions{MaxSenders: 1, Overwrite: true})
		over := mem.New(nil)
		sender, receiver := endsOver(t, dialect, over)
		got := startReceive(t.Context(), store, receiver, NoWatcher{})
		s := &script{t, sender, heap("stalled", 5, 7)}
		for k, step := range stops[:i+1] {
			if k > 0 {
				time.Sleep(25 * time.Second) // less than StallTimeout
			}
			step(s)
		}
		begin := time.Now()
		time.Sleep(29 * time.Second)
		sent, _ := sendOver(t, dialect, over, store, NoWatcher{}, filepath.Dir(second))
		require.ErrorContains(t, sent, "1 senders are being served")

		err := <-got
		require.Equal(t, &StallError{Sender: receiver.RemoteAddr(), Waited: 30 * time.Second}, err)
		waited := time.Since(begin)
		require.GreaterOrEqual(t, waited, 30*time.Second)
		require.Less(t, waited, 37*time.Second)
		placed := slices.Collect(maps.Keys(tree(t, dir)))
		require.ElementsMatch(t, slices.Repeat([]string{"a.safetensors"}, i/2), placed, "what had been placed stays, and no parts")

		sent, received := sendOver(t, dialect, over, store, NoWatcher{}, filepath.Dir(second))
		require.NoError(t, sent)
		require.NoError(t, received)
		_, err = sender.Next(t.Context())
		for err == nil {
			_, err = sender.Next(t.Context())
		}
		require.ErrorIs(t, err, pipe.ErrPeerClosed)
		require.ErrorContains(t, err, "stalled: nothing arrived from it for 30s")
	}
}

// TestNetworkThatStops checks that a transfer fails with a StallError if the network stops during a
// tensor, and that the sender gets the reason when the network works again.
func TestNetworkThatStops(t *testing.T) { inVirtualTime(t, testNetworkThatStops) }

func testNetworkThatStops(t *testing.T, dialect pipe.Dialect) {
	path := filepath.Join(t.TempDir(), oneName)
	writeFile(t, path, heap("large", 10<<20))
	stop := simnet.AfterBytes(1, simnet.Dialled, 5<<20) // of the bulk connection
	if dialect == pipe.DialectCompatible {
		stop = simnet.AfterBytes(2, simnet.Dialled, 5<<20) // of the channel
	}
	network := simnet.New(mem.New(nil), simnet.HalfOpenAt(stop))
	store, dir := openStore(t, StoreOptions{})
	list, err := Gather([]string{path}, false)
	require.NoError(t, err)
	sender, receiver := endsOver(t, dialect, network)
	got := startReceive(t.Context(), store, receiver, NoWatcher{})
	sent := make(chan error, 1)
	go func() { sent <- Send(t.Context(), sender, list, SendOptions{}, NoWatcher{}) }()
	synctest.Wait()
	require.Greater(t, receiver.Stats().Progress, uint64(4<<20))
	for _, l := range network.Links() {
		l.HalfOpen()
	}
	var stalled *StallError
	require.ErrorAs(t, <-got, &stalled)
	require.NotContains(t, tree(t, dir), oneName)
	for _, l := range network.Links() {
		l.Heal()
	}
	require.ErrorContains(t, <-sent, stalled.Error())
}

// TestSlowNetwork checks that a tensor that takes longer than StallTimeout arrives, because its
// bytes count as progress. It uses the native dialect only: in the compatible one such a tensor is
// one frame, which the simulated network delivers at once.
func TestSlowNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), oneName)
		writeFile(t, path, heap("large", 10<<20))
		store, _ := openStore(t, StoreOptions{})
		network := simnet.New(mem.New(nil), simnet.Rate(64<<10))
		begin := time.Now()
		sent, received := sendOver(t, pipe.DialectNative, network, store, NoWatcher{}, path)
		require.NoError(t, sent)
		require.NoError(t, received)
		require.Greater(t, time.Since(begin), 150*time.Second)
	})
}

// slowDisk is a Watcher that sleeps after each part, as a slow disk would.
type slowDisk struct{ takes time.Duration }

func (d slowDisk) Accepted(int, int) { time.Sleep(d.takes) }
func (d slowDisk) Moved(int)         { time.Sleep(d.takes) }
func (d slowDisk) Placed(File)       { time.Sleep(d.takes) }
func (d slowDisk) Kept(string, int)  {}

// TestSlowDisk checks that a receiver whose disk takes longer than StallTimeout does not fail the
// transfer, even if the window is full or the sender has nothing more to send.
func TestSlowDisk(t *testing.T) { inVirtualTime(t, testSlowDisk) }

func testSlowDisk(t *testing.T, dialect pipe.Dialect) {
	folder := filepath.Join(t.TempDir(), "w")
	writeFile(t, filepath.Join(folder, "many.safetensors"), heap("many", slices.Repeat([]int{100}, 60)...))
	writeFile(t, filepath.Join(folder, "two.safetensors"), heap("two", 70<<10, 5<<20))
	store, _ := openStore(t, StoreOptions{StallTimeout: time.Second})
	sent, received := sendOver(t, dialect, mem.New(nil), store, slowDisk{20 * time.Second}, folder)
	require.NoError(t, sent)
	require.NoError(t, received)
}

// TestSilentSender checks that a sender without an offer takes no slot, and fails after ten
// seconds, or StallTimeout if that is less.
func TestSilentSender(t *testing.T) { inVirtualTime(t, testSilentSender) }

func testSilentSender(t *testing.T, dialect pipe.Dialect) {
	path, _ := one(t)
	for limit, want := range map[time.Duration]time.Duration{0: messageTimeout, 2 * time.Second: 2 * time.Second} {
		store, _ := openStore(t, StoreOptions{MaxSenders: 1, StallTimeout: limit, Overwrite: true})
		over := mem.New(nil)
		silent, receiver := endsOver(t, dialect, over)
		begin := time.Now()
		got := startReceive(t.Context(), store, receiver, NoWatcher{})
		sent, received := sendOver(t, dialect, over, store, NoWatcher{}, path)
		require.NoError(t, sent)
		require.NoError(t, received)
		require.Equal(t, &StallError{Sender: receiver.RemoteAddr(), Waited: want}, <-got)
		require.Less(t, time.Since(begin), want+2*time.Second)
		_, err := silent.Next(t.Context())
		require.ErrorContains(t, err, "stalled: nothing arrived from it")
	}
}

// TestSilentCrowd checks that the oldest pipes without an offer fail at once with ErrLimit if there
// are more than maxWaiting, and that a sender with an offer is served nevertheless.
func TestSilentCrowd(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, dialect pipe.Dialect) {
		path, _ := one(t)
		store, _ := openStore(t, StoreOptions{})
		over := mem.New(nil)
		const more = 10
		var got []<-chan error
		for range maxWaiting + more {
			_, receiver := endsOver(t, dialect, over)
			got = append(got, startReceive(t.Context(), store, receiver, NoWatcher{}))
			synctest.Wait()
		}
		begin := time.Now()
		for _, g := range got[:more] {
			require.ErrorIs(t, <-g, ErrLimit)
		}
		require.Zero(t, time.Since(begin))
		sent, received := sendOver(t, dialect, over, store, NoWatcher{}, path)
		require.NoError(t, sent)
		require.NoError(t, received)
		for _, g := range got[more:] {
			require.Error(t, <-g)
		}
		require.Empty(t, store.waiting)
	})
}

// TestSenderThatDoesNotRead checks that a sender that does not read confirmations fails with a
// StallError. It uses the compatible dialect, because in the native one the pipe buffers the
// confirmations.
func TestSenderThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, _ := openStore(t, StoreOptions{})
		sender, receiver := endsOver(t, pipe.DialectCompatible, mem.New(nil, mem.WithBuffer(256)))
		got := startReceive(t.Context(), store, receiver, NoWatcher{})
		s := &script{t, sender, heap("none")}
		const files = 60
		var all []fileOffer
		for i := range files {
			all = append(all, fileOffer{fmt.Sprintf("%d.safetensors", i), len(s.file)})
		}
		s.offers(all...)
		for i := range files {
			s.goodHead(i)
		}
		var stalled *StallError
		require.ErrorAs(t, <-got, &stalled)
	})
}
