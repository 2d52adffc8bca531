package bench

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
)

// receive is the server of TCP: it takes the connections, reads all batches,
// and says behind each on every connection how much CPU time it has used.
func (j job) receive(ctx context.Context, out *json.Encoder) error {
	if j.Connections < 1 || j.Connections > maxLanes {
		return fmt.Errorf("%w: %d connections", ErrProtocol, j.Connections)
	}
	listening := net.ListenConfig{Control: unpaced}
	l, err := listening.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	b, err := newBundle(j.Spec)
	if err != nil {
		return err
	}
	defer b.close()
	defer context.AfterFunc(ctx, func() {
		_ = l.Close()
		b.close()
	})()
	if err := out.Encode(greeting{[]string{l.Addr().String()}}); err != nil {
		return err
	}
	for range j.Connections {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		b.add(c)
	}
	if err := b.each(b.read); err != nil {
		return err
	}
	<-ctx.Done() // the other end goes first
	return nil
}

// read takes all batches off a connection, which says first which one it is.
func (b *bundle) read(_ int, c net.Conn) error {
	var first [1]byte
	if _, err := io.ReadFull(c, first[:]); err != nil {
		return err
	}
	k := int(first[0])
	if k >= len(b.conns) {
		return fmt.Errorf("%w: connection %d of %d", ErrProtocol, k, len(b.conns))
	}
	for batch, n := range b.spec.floods() {
		for i := range n {
			if _, err := io.ReadFull(c, b.share(i, k)); err != nil {
				return fmt.Errorf("batch %d: %w", batch, err)
			}
		}
		word := binary.LittleEndian.AppendUint64(nil, uint64(cpuTime()))
		if _, err := c.Write(word); err != nil {
			return err
		}
	}
	return nil
}
