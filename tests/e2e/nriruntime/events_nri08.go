//go:build nri08

package main

import (
	"context"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
)

func runPodSandbox(ctx context.Context, nri *adaptation.Adaptation, pod *api.PodSandbox) error {
	return nri.RunPodSandbox(ctx, &api.StateChangeEvent{Pod: pod})
}

func removePodSandbox(ctx context.Context, nri *adaptation.Adaptation, pod *api.PodSandbox) error {
	return nri.RemovePodSandbox(ctx, &api.StateChangeEvent{Pod: pod})
}

func startContainer(
	ctx context.Context, nri *adaptation.Adaptation, pod *api.PodSandbox, container *api.Container,
) error {
	return nri.StartContainer(ctx, &api.StateChangeEvent{Pod: pod, Container: container})
}
