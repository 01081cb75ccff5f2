// Prints containerd's default seccomp profile, as runc reads it, for the capabilities that are named.
package main

import (
	"encoding/json"
	"log"
	"os"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func main() {
	held := os.Args[1:]
	spec := &specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{
		Bounding: held, Effective: held, Permitted: held,
	}}}
	if err := json.NewEncoder(os.Stdout).Encode(seccomp.DefaultProfile(spec)); err != nil {
		log.Fatal(err)
	}
}
