// Package flock locks files against other processes. A lock belongs to the open file and ends with
// it, also when the process is killed.
package flock
