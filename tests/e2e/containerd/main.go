// A client of a container runtime, as the kubelet is one.
//
// Reads one JSON object a line, {"op": method of the CRI's RuntimeService, "request": {…}}, and
// answers each with one line: {"op", "error", "reply"}. The op Import has the runtime load a tar of
// images, {"path"}. With -import it loads that tar, and ends.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	namespace = "k8s.io" // of containerd, in which the CRI's images are
	patience  = 120 * time.Second
)

type command struct {
	Op      string          `json:"op"`
	Path    string          `json:"path"`
	Request json.RawMessage `json:"request"`
}

type answer struct {
	Op    string `json:"op"`
	Error string `json:"error"`
	Reply any    `json:"reply"`
}

func call(ctx context.Context, conn *grpc.ClientConn, c *command) (any, error) {
	runtime := cri.NewRuntimeServiceClient(conn)
	switch c.Op {
	case "Import":
		return nil, load(ctx, conn, c.Path)
	case "Status":
		return ask(ctx, c, runtime.Status)
	case "RunPodSandbox":
		return ask(ctx, c, runtime.RunPodSandbox)
	case "StopPodSandbox":
		return ask(ctx, c, runtime.StopPodSandbox)
	case "RemovePodSandbox":
		return ask(ctx, c, runtime.RemovePodSandbox)
	case "CreateContainer":
		return ask(ctx, c, runtime.CreateContainer)
	case "StartContainer":
		return ask(ctx, c, runtime.StartContainer)
	case "UpdateContainerResources":
		return ask(ctx, c, runtime.UpdateContainerResources)
	}
	return nil, fmt.Errorf("no op %q", c.Op)
}

func ask[Q, R any](
	ctx context.Context, c *command, method func(context.Context, *Q, ...grpc.CallOption) (R, error),
) (any, error) {
	request := new(Q)
	if err := json.Unmarshal(c.Request, request); err != nil {
		return nil, err
	}
	return method(ctx, request)
}

func load(ctx context.Context, conn *grpc.ClientConn, path string) error {
	client, err := containerd.NewWithConn(conn)
	if err != nil {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	loaded, err := client.Import(namespaces.WithNamespace(ctx, namespace), file)
	for _, each := range loaded {
		if err == nil {
			err = seen(ctx, conn, each.Name)
		}
	}
	return err
}

// seen waits until the CRI has an image, of which it is notified: until then it would pull it.
func seen(ctx context.Context, conn *grpc.ClientConn, name string) error {
	request := &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}}
	for {
		found, err := cri.NewImageServiceClient(conn).ImageStatus(ctx, request)
		if err != nil || found.Image != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the CRI has no image %s: %w", name, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func main() {
	socket := flag.String("socket", "", "path of the runtime's socket")
	tar := flag.String("import", "", "path of a tar of images to load")
	flag.Parse()
	conn, err := grpc.NewClient("unix://"+*socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if *tar != "" {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := load(ctx, conn, *tar); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	in, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	for in.Scan() {
		c := &command{}
		if err := json.Unmarshal(in.Bytes(), c); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		a := answer{Op: c.Op}
		if a.Reply, err = call(ctx, conn, c); err != nil {
			a.Error = err.Error()
		}
		cancel()
		_ = out.Encode(a)
	}
}
