// Package samehost tests pipes between processes of one machine: what they
// share, what the system refuses them, and what becomes of one when the other is
// killed.
package samehost
