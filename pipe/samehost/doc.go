// Package samehost tests pipes between processes of one machine: shared memory and direct copies,
// denials by the system, and the death of one of the processes. It contains tests only.
package samehost
