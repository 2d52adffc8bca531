module github.com/tensorpipe-go/tensorpipe

go 1.26.0

require (
	github.com/ebitengine/purego v0.11.3
	github.com/klauspost/compress v1.20.3
	github.com/libp2p/go-yamux/v4 v4.0.2
	github.com/stretchr/testify v1.12.1
	github.com/x448/float16 v0.8.4
	go.uber.org/goleak v1.3.0
	golang.org/x/net v0.62.0
	golang.org/x/sys v0.49.0
	gonum.org/v1/gonum v0.17.0
	pgregory.net/rapid v1.2.0
)

require (
	github.com/libp2p/go-buffer-pool v0.0.2 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)
