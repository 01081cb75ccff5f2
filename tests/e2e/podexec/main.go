// A scripted API server with pods, into which kubectl can exec: the kubelet's own streaming code runs
// the command on this machine, over SPDY as over WebSockets.
//
//	podexec PODS.json COMMAND...
//
// prints its address; PODS.json is a PodList. What is executed is COMMAND with the arguments that
// follow the first of the client's, which is the name of the command in the container.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	remotecommandconsts "k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/client-go/tools/remotecommand"
	streaming "k8s.io/kubelet/pkg/cri/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

type pod struct {
	Metadata struct {
		Name, Namespace string
		Labels          map[string]string
	}
	Spec   struct{ NodeName string }
	Status struct{ Phase string }
}

type server struct {
	pods    []json.RawMessage
	command []string
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case r.URL.Path == "/api":
		answer(w, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
	case r.URL.Path == "/apis":
		answer(w, metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}})
	case r.URL.Path == "/api/v1":
		answer(w, metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList"}, GroupVersion: "v1",
			APIResources: []metav1.APIResource{{
				Name: "pods", SingularName: "pod", Namespaced: true, Kind: "Pod",
				Verbs: metav1.Verbs{"get", "list"}, ShortNames: []string{"po"},
			}},
		})
	case len(parts) == 5 && parts[4] == "pods":
		s.list(w, r, parts[3])
	case len(parts) == 6 && parts[4] == "pods":
		s.get(w, parts[3], parts[5])
	case len(parts) == 7 && parts[6] == "exec":
		s.exec(w, r, parts[5])
	default:
		http.NotFound(w, r)
	}
}

func (s *server) list(w http.ResponseWriter, r *http.Request, namespace string) {
	byLabel, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	byField, fieldErr := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
	if err != nil || fieldErr != nil {
		http.Error(w, fmt.Sprint(err, fieldErr), http.StatusBadRequest)
		return
	}
	items := []json.RawMessage{}
	for _, raw := range s.pods {
		one := read(raw)
		has := fields.Set{"spec.nodeName": one.Spec.NodeName, "status.phase": one.Status.Phase}
		if one.Metadata.Namespace == namespace && byLabel.Matches(labels.Set(one.Metadata.Labels)) && byField.Matches(has) {
			items = append(items, raw)
		}
	}
	answer(w, map[string]any{"kind": "PodList", "apiVersion": "v1", "metadata": map[string]string{}, "items": items})
}

func (s *server) get(w http.ResponseWriter, namespace, name string) {
	for _, raw := range s.pods {
		if one := read(raw); one.Metadata.Namespace == namespace && one.Metadata.Name == name {
			answer(w, raw)
			return
		}
	}
	http.Error(w, "no such pod", http.StatusNotFound)
}

func (s *server) exec(w http.ResponseWriter, r *http.Request, name string) {
	query := r.URL.Query()
	on := func(key string) bool { return query.Get(key) == "true" || query.Get(key) == "1" }
	options := &streaming.Options{Stdin: on("stdin"), Stdout: on("stdout"), Stderr: on("stderr"), TTY: on("tty")}
	streaming.ServeExec(w, r, s, name, types.UID(""), query.Get("container"), query["command"], options,
		time.Minute, time.Minute, remotecommandconsts.SupportedStreamingProtocols)
}

func (s *server) ExecInContainer(
	ctx context.Context, _ string, _ types.UID, _ string, command []string,
	in io.Reader, out, errors io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize, _ time.Duration,
) error {
	whole := append(append([]string{}, s.command...), command[1:]...)
	process := exec.CommandContext(ctx, whole[0], whole[1:]...)
	process.Stdin, process.Stdout, process.Stderr = in, out, errors
	err := process.Run()
	if ended, ok := err.(*exec.ExitError); ok {
		return utilexec.CodeExitError{Err: err, Code: ended.ExitCode()}
	}
	return err
}

func read(raw json.RawMessage) pod {
	var one pod
	if err := json.Unmarshal(raw, &one); err != nil {
		log.Fatal(err)
	}
	return one
}

func answer(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(value); err != nil {
		log.Print(err)
	}
}

func main() {
	text, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	var list struct{ Items []json.RawMessage }
	if err := json.Unmarshal(text, &list); err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr())
	log.Fatal(http.Serve(listener, &server{pods: list.Items, command: os.Args[2:]}))
}
