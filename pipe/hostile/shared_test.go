package hostile_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// childGuesses is the environment variable with the ids that a child tries.
const childGuesses = "HOSTILE_GUESSES"

// TestGuessedIDOverSharedMemory checks that another process of the same user, which can find the
// listener of shared memory but does not know the ids of a handshake, is rejected for every guessed
// id, and that the handshake then succeeds.
func TestGuessedIDOverSharedMemory(t *testing.T) {
	s := newSHMHandshake(t)
	ids := s.answer.TransportRegistrationIDs
	desc, reply := ids[wire.DescriptorConnection], ids[wire.ReplyConnection]
	channel := s.answer.ChannelRegistrationIDs[basic.Name][0]
	guesses := []uint64{0, 1, 2, 3, 4, desc - 1, desc + 1, reply - 1, reply + 1, channel - 1, channel + 1, reply ^ channel}
	for range 10 {
		guesses = append(guesses, rand.Uint64())
	}
	s.guess(t, guesses)
	require.Equal(t, 1, s.v.Stats().PipesOpen, "the healthy one")

	conns := map[uint64]transport.Conn{}
	for _, id := range []uint64{channel, reply, desc} {
		conns[id] = s.dialRaw(t, id)
	}
	p, err := s.listener.Accept(t.Context())
	require.NoError(t, err)
	require.Equal(t, shm.Name, p.Plan().Transport)
	require.NoError(t, conns[desc].WriteFrames(transport.Frame{payloadDescriptor(2)}, transport.Frame{[]byte("hi")}))
	in, err := p.Next(t.Context())
	require.NoError(t, err)
	a := pipe.NewAllocation(in.Descriptor())
	require.NoError(t, in.Read(t.Context(), a))
	require.Equal(t, "hi", string(a.Payloads[0]))
	for _, c := range conns {
		require.NoError(t, c.Close())
	}
	require.NoError(t, p.Close())
	s.v.requireIdle(t)
}

// shmHandshake is a handshake that begins over TCP and changes to shared memory.
type shmHandshake struct {
	v        *victim
	tr       *shm.Transport // of the client
	listener *pipe.Listener
	answer   *wire.BrochureAnswer
}

func newSHMHandshake(t *testing.T) *shmHandshake {
	t.Helper()
	s := &shmHandshake{tr: shm.New()}
	if err := s.tr.Viable(); err != nil {
		t.Skip("shared memory does not work here: ", err)
	}
	s.v = newVictim(t, func(o *pipe.Options) {
		o.Transports = append(o.Transports, pipe.TransportEntry{Name: shm.Name, Priority: 200, Transport: shm.New()})
		o.HandshakeTimeout = testTimeout // it includes the start of another process
	})
	var err error
	s.listener, err = s.v.Listen(t.Context(), "uv://127.0.0.1:0", "shm://")
	require.NoError(t, err)
	b := goodBrochure()
	b.TransportDomainDescriptors[shm.Name] = s.tr.DomainDescriptor()
	first := s.v.over.dial(t, strings.TrimPrefix(s.listener.URLs()[1], "uv://"))
	first.frame(hello())
	first.frame(b.Append(nil))
	s.answer, err = wire.DecodeBrochureAnswer(first.read(), wire.Limits{})
	require.NoError(t, err)
	require.Equal(t, shm.Name, s.answer.Transport)
	return s
}

// dialRaw opens a connection to the victim over shared memory, sends id as its registration id, and
// returns the connection, which is closed at the end of the test.
func (s *shmHandshake) dialRaw(t *testing.T, id uint64) transport.Conn {
	t.Helper()
	c, err := s.tr.Dial(t.Context(), s.answer.Address)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.WriteFrames(transport.Frame{request(id)}))
	return c
}

// guess starts another process that opens a connection for each of ids, and requires that the
// process finds each one closed and that the victim logs each rejection.
func (s *shmHandshake) guess(t *testing.T, ids []uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout) // an accepted connection would block
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childRole+"=guess", childURL+"="+s.answer.Address,
		childGuesses+"="+strings.Trim(fmt.Sprint(ids), "[]"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	name := fmt.Sprint("pid ", cmd.Process.Pid)
	waitFor(t, func() bool {
		refused := s.v.log.find(func(r record) bool { return r.peer == name && errors.Is(r.err, pipe.ErrProtocol) })
		return len(refused) == len(ids)
	}, "a record of each guess")
}

// tryGuesses is the main function of the process that guess starts: it opens a connection with each
// id from the environment, one after the other, and returns an error unless the victim closes each
// of them.
func tryGuesses() error {
	for text := range strings.FieldsSeq(os.Getenv(childGuesses)) {
		id, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return err
		}
		c, err := shm.New().Dial(context.Background(), os.Getenv(childURL))
		if err != nil {
			return err
		}
		if err := c.WriteFrames(transport.Frame{request(id)}); err != nil {
			return err
		}
		if _, err := c.NextFrame(); !errors.Is(err, io.EOF) {
			return fmt.Errorf("id %d: %w", id, err)
		}
		if err := c.Close(); err != nil {
			return err
		}
	}
	return nil
}
