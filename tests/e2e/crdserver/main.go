// Command crdserver runs Kubernetes' own CustomResourceDefinition server, alone on an etcd: real
// storage, schemas, pruning, status subresource, conflicts, watches, bookmarks and 410 for the tests,
// without the rest of an API server. Everybody may do everything, so bind it to loopback only.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/apiextensions-apiserver/pkg/cmd/server"
	"k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

func main() {
	wanted := options.NewCustomResourceDefinitionsServerOptions(os.Stdout, os.Stderr)
	// These three would ask a whole API server about every request.
	wanted.RecommendedOptions.Authentication = nil
	wanted.RecommendedOptions.Authorization = nil
	wanted.RecommendedOptions.Admission = nil

	command := &cobra.Command{
		Use:          "crdserver",
		SilenceUsage: true,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := wanted.ServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
				return err
			}
			if err := wanted.Complete(); err != nil {
				return err
			}
			if err := wanted.Validate(); err != nil {
				return err
			}
			return server.Run(command.Context(), wanted)
		},
	}
	wanted.AddFlags(command.Flags())
	if err := command.ExecuteContext(genericapiserver.SetupSignalContext()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
