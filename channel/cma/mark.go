package cma

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"sync"
)

// ownKey is a secret of this process. Like its id it is the same for all that runs
// in it, and says nothing else.
var ownKey = sync.OnceValue(func() []byte {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // does not fail
	return key
})

// mark is half a nonce that only this process can make, from the other half.
func mark(half []byte) []byte {
	h := hmac.New(sha256.New, ownKey())
	_, _ = h.Write(half) // does not fail
	return h.Sum(nil)[:nonceHalf]
}
