// Renders, lints, installs, upgrades and uninstalls a chart by Helm's own code.
//
// The release is kept in memory, and no API server is asked: what would be sent to it is printed.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	kubefake "helm.sh/helm/v3/pkg/kube/fake"
	"helm.sh/helm/v3/pkg/registry"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/storage"
	"helm.sh/helm/v3/pkg/storage/driver"
)

const name = "koordlet"

// The cluster that the chart is for.
var version = chartutil.KubeVersion{Version: "v1.35.0", Major: "1", Minor: "35"}

// One thing to do with the chart, as a line of standard input.
type request struct {
	Chart     string         `json:"chart"`
	Namespace string         `json:"namespace"`
	Action    string         `json:"action"` // lint, render, install, upgrade or uninstall
	Values    map[string]any `json:"values"`
}

// What became of it, as a line of standard output.
type answer struct {
	Manifest string   `json:"manifest"`
	Notes    string   `json:"notes"`
	Status   string   `json:"status"`
	Messages []string `json:"messages"`
	Error    string   `json:"error"`
}

func main() {
	requests, answers := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	client, err := registry.NewClient()
	if err != nil {
		panic(err)
	}
	cluster := chartutil.DefaultCapabilities.Copy()
	cluster.KubeVersion = version
	config := &action.Configuration{
		Releases:       storage.Init(driver.NewMemory()),
		KubeClient:     &kubefake.PrintingKubeClient{Out: io.Discard},
		Capabilities:   cluster,
		RegistryClient: client,
		Log:            func(string, ...any) {},
	}
	for {
		var asked request
		if err := requests.Decode(&asked); err == io.EOF {
			return
		} else if err != nil {
			panic(err)
		}
		made, err := do(config, asked)
		if err != nil {
			made.Error = err.Error()
		}
		if err := answers.Encode(made); err != nil {
			panic(err)
		}
	}
}

func do(config *action.Configuration, asked request) (answer, error) {
	switch asked.Action {
	case "lint":
		lint := action.NewLint()
		lint.Strict = true
		lint.Namespace, lint.KubeVersion = asked.Namespace, &version
		found := lint.Run([]string{asked.Chart}, asked.Values)
		made := answer{Status: fmt.Sprintf("%d", found.TotalChartsLinted)}
		for _, message := range found.Messages {
			made.Messages = append(made.Messages, message.Error())
		}
		for _, err := range found.Errors {
			made.Error += err.Error() + "\n"
		}
		return made, nil
	case "uninstall":
		found, err := action.NewUninstall(config).Run(name)
		if err != nil {
			return answer{}, err
		}
		return of(found.Release), nil
	}
	loaded, err := loader.Load(asked.Chart)
	if err != nil {
		return answer{}, err
	}
	found, err := released(config, asked, loaded)
	if err != nil {
		return answer{}, err
	}
	return of(found), nil
}

func released(config *action.Configuration, asked request, loaded *chart.Chart) (*release.Release, error) {
	if asked.Action == "upgrade" {
		upgrade := action.NewUpgrade(config)
		upgrade.Namespace = asked.Namespace
		upgrade.ResetThenReuseValues = true
		return upgrade.Run(name, loaded, asked.Values)
	}
	install := action.NewInstall(config)
	install.ReleaseName, install.Namespace = name, asked.Namespace
	if asked.Action == "render" {
		install.DryRun, install.ClientOnly, install.Replace = true, true, true
		install.KubeVersion = &version
	} else if asked.Action != "install" {
		return nil, fmt.Errorf("wanted lint, render, install, upgrade or uninstall, found %q", asked.Action)
	}
	return install.Run(loaded, asked.Values)
}

func of(found *release.Release) answer {
	return answer{Manifest: found.Manifest, Notes: found.Info.Notes, Status: string(found.Info.Status)}
}
