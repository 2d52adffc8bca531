module github.com/tensorpipe-go/tensorpipe/cudaipc/gorgonia

go 1.26.0

require (
	github.com/stretchr/testify v1.12.1
	github.com/tensorpipe-go/tensorpipe v0.0.0
	gorgonia.org/cu v0.9.6
)

require (
	github.com/ebitengine/purego v0.11.3 // indirect
	github.com/google/uuid v1.1.1 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	go.uber.org/goleak v1.3.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

replace github.com/tensorpipe-go/tensorpipe => ../..
