// Command strict reads Kubernetes objects as a JSON list from standard input and decodes each as the API
// server does with field validation "Strict". It writes a JSON list: "" for a good object, else what is
// wrong, such as an unknown field.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	var objects []json.RawMessage
	if err := json.NewDecoder(os.Stdin).Decode(&objects); err != nil {
		return err
	}
	kinds := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, v1.AddToScheme} {
		if err := add(kinds); err != nil {
			return err
		}
	}
	decoder := serializer.NewCodecFactory(kinds, serializer.EnableStrict).UniversalDeserializer()
	answers := make([]string, len(objects))
	for i, object := range objects {
		if _, _, err := decoder.Decode(object, nil, nil); err != nil {
			answers[i] = err.Error()
		}
	}
	return json.NewEncoder(os.Stdout).Encode(answers)
}
