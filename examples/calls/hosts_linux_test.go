package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/twohosts"
)

// TestCallsBetweenHosts runs the two commands of the README for two hosts, on this host and on a
// simulated second one, and tests their output.
func TestCallsBetweenHosts(t *testing.T) {
	hosts := twohosts.New(t)
	secret := t.TempDir() + "/secret"
	require.NoError(t, os.WriteFile(secret, []byte("not to be guessed"), 0o600))
	rendezvous := "tcp://" + hosts.Here + ":" + freeport.Port(t, hosts.Here)
	here := commandHere(t, "-rank", "0", "-rendezvous", rendezvous, "-token-file", secret)
	there := hosts.Command(os.Args[0], "-rank", "1", "-rendezvous", rendezvous, "-token-file", secret)
	var out [2]strings.Builder
	there.Env, there.Stdout, there.Stderr = append(os.Environ(), asCommand+"=1"), &out[1], &out[1]
	here.Stdout, here.Stderr = &out[0], &out[0]
	require.NoError(t, there.Start())
	require.NoError(t, here.Run(), out[0].String())
	require.NoError(t, there.Wait(), out[1].String())
	require.Equal(t, wanted, out[0].String()+out[1].String())
}
