//go:build v130

package main

import (
	"github.com/spf13/cobra"
	"k8s.io/kubernetes/cmd/kubelet/app"
)

func newKubelet() *cobra.Command {
	return app.NewKubeletCommand()
}

// This version's kubectl sets it by itself.
func setVerbosityOfKubectl() {}
