// The runtime's side of NRI, as in containerd and CRI-O, without a runtime behind it.
//
// Reads one JSON object a line, {"op": …}, and answers each with one line:
// {"op", "error", "micros", "reply"}. A plugin that comes is synchronized with what "state" said, and
// that is reported by a line of its own, {"op": "synchronized", …}.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

type command struct {
	Op         string            `json:"op"`
	Pods       []json.RawMessage `json:"pods"`
	Containers []json.RawMessage `json:"containers"`
	Pod        json.RawMessage   `json:"pod"`
	Container  json.RawMessage   `json:"container"`
	Resources  json.RawMessage   `json:"resources"`
	Message    string            `json:"message"`
}

type answer struct {
	Op     string          `json:"op"`
	Error  string          `json:"error"`
	Micros int64           `json:"micros"`
	Reply  json.RawMessage `json:"reply,omitempty"`
}

type runtime struct {
	sync.Mutex
	pods       []*api.PodSandbox
	containers []*api.Container
	out        *json.Encoder
	nri        *adaptation.Adaptation
}

func (r *runtime) say(a answer) {
	r.Lock()
	defer r.Unlock()
	_ = r.out.Encode(a)
}

func asJSON(m proto.Message) json.RawMessage {
	text, err := protojson.Marshal(m)
	if err != nil {
		panic(err)
	}
	return text
}

func parse(raw json.RawMessage, into proto.Message) {
	if len(raw) == 0 {
		return
	}
	if err := protojson.Unmarshal(raw, into); err != nil {
		fmt.Fprintln(os.Stderr, "parse:", err)
		os.Exit(1)
	}
}

func (r *runtime) synchronize(ctx context.Context, cb adaptation.SyncCB) error {
	r.Lock()
	pods, containers := r.pods, r.containers
	r.Unlock()
	began := time.Now()
	updates, err := cb(ctx, pods, containers)
	a := answer{Op: "synchronized", Micros: time.Since(began).Microseconds()}
	if err != nil {
		a.Error = err.Error()
	} else {
		a.Reply = asJSON(&api.SynchronizeResponse{Update: updates})
	}
	go func() { // it is among the plugins once no plugin is being synchronized any more
		r.nri.BlockPluginSync().Unblock()
		r.say(a)
	}()
	return err
}

func (r *runtime) updated(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	return nil, nil
}

func (r *runtime) do(nri *adaptation.Adaptation, c *command) answer {
	ctx, pod, container := context.Background(), &api.PodSandbox{}, &api.Container{}
	parse(c.Pod, pod)
	parse(c.Container, container)
	began := time.Now()
	var reply proto.Message
	var err error
	switch c.Op {
	case "state":
		r.Lock()
		r.pods, r.containers = nil, nil
		for _, raw := range c.Pods {
			one := &api.PodSandbox{}
			parse(raw, one)
			r.pods = append(r.pods, one)
		}
		for _, raw := range c.Containers {
			one := &api.Container{}
			parse(raw, one)
			r.containers = append(r.containers, one)
		}
		r.Unlock()
	case "start":
		err = nri.Start()
	case "run":
		err = runPodSandbox(ctx, nri, pod)
	case "remove":
		err = removePodSandbox(ctx, nri, pod)
	case "create":
		reply, err = nri.CreateContainer(ctx, &api.CreateContainerRequest{Pod: pod, Container: container})
	case "begin": // what containerd and CRI-O do before a container's program runs
		err = startContainer(ctx, nri, pod, container)
	case "update":
		resources := &api.LinuxResources{}
		parse(c.Resources, resources)
		reply, err = nri.UpdateContainer(ctx, &api.UpdateContainerRequest{
			Pod: pod, Container: container, LinuxResources: resources,
		})
	case "encode": // one of these messages as bytes, in hex
		var message proto.Message
		switch c.Message {
		case "pod":
			message = pod
		case "container":
			message = container
		case "update":
			resources := &api.LinuxResources{}
			parse(c.Resources, resources)
			message = resources
		}
		bytes, _ := proto.MarshalOptions{Deterministic: true}.Marshal(message)
		text, _ := json.Marshal(fmt.Sprintf("%x", bytes))
		return answer{Op: c.Op, Reply: text}
	default:
		err = fmt.Errorf("no op %q", c.Op)
	}
	a := answer{Op: c.Op, Micros: time.Since(began).Microseconds()}
	if err != nil {
		a.Error = err.Error()
	} else if reply != nil {
		a.Reply = asJSON(reply)
	}
	return a
}

func main() {
	socket := flag.String("socket", "", "path of the socket")
	flag.Parse()
	r := &runtime{out: json.NewEncoder(os.Stdout)}
	nri, err := adaptation.New("containerd", "v2.0.0", r.synchronize, r.updated,
		adaptation.WithSocketPath(*socket), adaptation.WithPluginPath(*socket+".plugins"),
		adaptation.WithPluginConfigPath(*socket+".conf"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	r.nri = nri
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 64<<20)
	for in.Scan() {
		c := &command{}
		if err := json.Unmarshal(in.Bytes(), c); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		r.say(r.do(nri, c))
	}
	nri.Stop()
}
