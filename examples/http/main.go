// Command http runs net/http over tensorpipe: through shared memory within a machine, over TCP
// beyond. Start the server, then the client, in two terminals:
//
//	go run ./examples/http -listen uv://127.0.0.1:7100,shm://
//	go run ./examples/http -to uv://127.0.0.1:7100
//
// With -plain at both ends the client also measures the same requests over a connection of package
// net, in turns:
//
//	go run ./examples/http -listen uv://127.0.0.1:7100,shm:// -plain 127.0.0.1:7101
//	go run ./examples/http -to uv://127.0.0.1:7100 -plain 127.0.0.1:7101
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

func main() {
	listen := flag.String("listen", "", "serve at these urls, separated by commas")
	to := flag.String("to", "", "send requests to the server at this url")
	plain := flag.String("plain", "", "HOST:PORT of the server over a connection of package net")
	requests := flag.Int("requests", 1000, "requests in each measurement")
	size := flag.Int("size", 1024, "bytes in each answer")
	flag.Parse()
	err := errors.New("give -listen or -to, and -requests of at least 1; -help explains them")
	switch ctx := context.Background(); {
	case *requests < 1:
	case *listen != "":
		err = serve(ctx, strings.Split(*listen, ","), *plain)
	case *to != "":
		err = measure(ctx, *to, *plain, *requests, *size)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "http:", err)
		os.Exit(1)
	}
}

// serve answers requests at urls and, if plain is not empty, at that address, until one of the
// listeners fails. It returns the error of that listener, or that of tensorpipe.ListenConn.
func serve(ctx context.Context, urls []string, plain string) error {
	l, err := tensorpipe.ListenConn(ctx, urls...)
	if err != nil {
		return err
	}
	failed := make(chan error, 2)
	go func() { failed <- http.Serve(l, http.HandlerFunc(answer)) }()
	if plain != "" {
		go func() { failed <- http.ListenAndServe(plain, http.HandlerFunc(answer)) }()
	}
	fmt.Println("serving at", l.Addr())
	return <-failed
}

// answer sends as many bytes as the query of the request asks for by size. It answers with the
// status 400 if size is no number from 0 to 1 GiB.
func answer(w http.ResponseWriter, r *http.Request) {
	size, err := strconv.Atoi(r.URL.Query().Get("size"))
	if err != nil || size < 0 || size > 1<<30 {
		http.Error(w, "size must be a number of bytes, at most 1 GiB", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Length", strconv.Itoa(size))
	_, _ = w.Write(make([]byte, size))
}

// measure prints the time of a request over Conns to url and, if plain is not empty, over
// connections of package net to that address. Each time is the median of several rounds, which take
// turns. It returns the error of the first request that fails, or that of tensorpipe.NewContext.
func measure(ctx context.Context, url, plain string, requests, size int) error {
	c, err := tensorpipe.NewContext(pipe.Options{})
	if err != nil {
		return err
	}
	defer c.Close()
	var path string
	paths := []func(context.Context, string, string) (net.Conn, error){
		func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := c.DialConn(ctx, url)
			if err == nil {
				path = conn.(*pipe.Conn).Plan().Transport
			}
			return conn, err
		},
	}
	if plain != "" {
		paths = append(paths, func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", plain)
		})
	}
	const rounds = 5
	times := make([][]time.Duration, len(paths))
	for range rounds {
		for i, dial := range paths {
			client := &http.Client{Transport: &http.Transport{DialContext: dial}}
			each, err := requestTime(client, requests, size)
			client.CloseIdleConnections()
			if err != nil {
				return err
			}
			times[i] = append(times[i], each)
		}
	}
	for i, all := range times {
		slices.Sort(all)
		name := []string{"tensorpipe over " + path, "package net over TCP"}[i]
		fmt.Printf("%s: %d requests for %d bytes, %v each\n", name, requests, size, all[rounds/2].Round(10*time.Nanosecond))
	}
	return nil
}

// requestTime sends requests for size bytes, one after the other, and returns their mean time. The
// first request, which opens the connection, is not one of them. requests must be positive. The
// error is that of the first request that fails, also because its response does not have size
// bytes.
func requestTime(client *http.Client, requests, size int) (time.Duration, error) {
	var began time.Time
	for i := range requests + 1 {
		if i == 1 {
			began = time.Now()
		}
		response, err := client.Get("http://server/?size=" + strconv.Itoa(size))
		if err != nil {
			return 0, err
		}
		got, err := io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		if err != nil || got != int64(size) {
			return 0, errors.Join(fmt.Errorf("%d bytes of %d, status %s", got, size, response.Status), err)
		}
	}
	return time.Since(began) / time.Duration(requests), nil
}
