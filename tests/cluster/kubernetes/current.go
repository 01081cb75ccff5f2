//go:build !v130

package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/logs"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubernetes/cmd/kubelet/app"
)

func newKubelet() *cobra.Command {
	return app.NewKubeletCommand(context.Background())
}

func setVerbosityOfKubectl() {
	logs.GlogSetter(kubectl.GetLogVerbosity(os.Args))
}
