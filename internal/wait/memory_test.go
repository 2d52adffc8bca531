package wait

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Whoever was the only one to get something for some time may spin.
func TestMemorySpinsWhenAlone(t *testing.T) {
	m, other := NewMemory(time.Hour), NewMemory(time.Hour)
	never := func() bool { return false }
	require.False(t, m.Find(never), "nothing has come yet")
	for range quiet + 1 {
		m.Came()
	}
	looks := 0
	require.True(t, m.Find(func() bool { looks++; return looks == 3 }))
	require.Equal(t, 3, looks)
	require.False(t, other.Find(never))
	other.Came()
	require.False(t, m.Find(never), "something came for another")
}

func TestMemoryDoesNotSpin(t *testing.T) {
	m := NewMemory(0)
	for range quiet + 1 {
		m.Came()
	}
	require.False(t, m.Find(func() bool { panic("looked") }))
}
