// Package files measures how fast tpipe send and tpipe recv copy files within one machine. In the
// same run it measures cp, followed by sync, and [Send] and [Receive], a bare copy over TCP by two
// processes.
//
// [Send] reads each file and writes it to a TCP connection. [Receive] reads the connection and
// writes the files. Neither computes a checksum, validates names and sizes, or can resume.
package files
