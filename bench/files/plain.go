package files

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
)

// bufferBytes is the number of bytes that each end reads and writes by one call.
const bufferBytes = 256 << 10

// head precedes the bytes of each file: the number of its bytes, and that of the bytes of its name,
// in little endian.
type head struct{ Bytes, Name uint32 }

// Send sends the files in the directory dir to a [Receive] that listens on address, and returns
// after Receive has confirmed that they are on disk. It returns the first error.
func Send(address, dir string) error {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	buf := make([]byte, bufferBytes)
	for _, e := range entries {
		if err := sendFile(conn, filepath.Join(dir, e.Name()), buf); err != nil {
			return err
		}
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, buf[:1])
	return err
}

// sendFile writes the head, the name and the bytes of the file at path to conn. It uses buf.
func sendFile(conn net.Conn, path string, buf []byte) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := binary.Write(conn, binary.LittleEndian, head{uint32(info.Size()), uint32(len(info.Name()))}); err != nil {
		return err
	}
	if _, err := conn.Write([]byte(info.Name())); err != nil {
		return err
	}
	for left := int(info.Size()); left > 0; {
		n, err := f.Read(buf)
		if err != nil {
			return err
		}
		if _, err := conn.Write(buf[:n]); err != nil {
			return err
		}
		left -= n
	}
	return nil
}

// Receive listens on a free port of 127.0.0.1, prints the address to out, and receives the files of
// one [Send] into the directory dir. It runs sync and then sends a byte as confirmation. It returns the first error.
func Receive(dir string, out io.Writer) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	if _, err := fmt.Fprintln(out, l.Addr()); err != nil {
		return err
	}
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	buf := make([]byte, bufferBytes)
	for {
		var h head
		if err := binary.Read(conn, binary.LittleEndian, &h); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		if err := receiveFile(conn, dir, h, buf); err != nil {
			return err
		}
	}
	if err := exec.Command("sync").Run(); err != nil {
		return err
	}
	_, err = conn.Write([]byte{1})
	return err
}

// receiveFile reads the name and the bytes of the file that h describes from conn and writes the
// file into dir. It uses buf.
func receiveFile(conn net.Conn, dir string, h head, buf []byte) error {
	name := make([]byte, h.Name)
	if _, err := io.ReadFull(conn, name); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, filepath.Base(string(name))))
	if err != nil {
		return err
	}
	for left := int(h.Bytes); left > 0; {
		p := buf[:min(len(buf), left)]
		if _, err := io.ReadFull(conn, p); err != nil {
			_ = f.Close()
			return err
		}
		if _, err := f.Write(p); err != nil {
			_ = f.Close()
			return err
		}
		left -= len(p)
	}
	return f.Close()
}
