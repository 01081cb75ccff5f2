// Command admission says what Kubernetes' own ValidatingAdmissionPolicy plugin makes of requests: it
// reads a policy, its binding, the cluster's roles with their bindings and a table of requests as JSON
// from standard input, and writes the answers as a JSON list, "" for an allowed request and the reason
// for a refused one.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/util/compatibility"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/component-base/featuregate"
)

const startSeconds = 30

type question struct {
	Policy       admissionv1.ValidatingAdmissionPolicy        `json:"policy"`
	Binding      admissionv1.ValidatingAdmissionPolicyBinding `json:"binding"`
	Roles        []rbacv1.ClusterRole                         `json:"roles"`
	RoleBindings []rbacv1.ClusterRoleBinding                  `json:"roleBindings"`
	Requests     []request                                    `json:"requests"`
}

// request is what the API server knows of a request when it asks the plugin.
type request struct {
	User        string              `json:"user"`
	Groups      []string            `json:"groups"`
	Extra       map[string][]string `json:"extra"`
	Operation   admission.Operation `json:"operation"`
	Group       string              `json:"group"`
	Version     string              `json:"version"`
	Kind        string              `json:"kind"`
	KindGroup   string              `json:"kindGroup"` // policy for an eviction, which is posted to pods
	Resource    string              `json:"resource"`
	Subresource string              `json:"subresource"`
	Namespace   string              `json:"namespace"`
	Name        string              `json:"name"`
	Object      map[string]any      `json:"object"`
	OldObject   map[string]any      `json:"oldObject"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	var asked question
	decoder := json.NewDecoder(os.Stdin)
	decoder.DisallowUnknownFields() // the API server prunes them with a warning; ours must not have any
	if err := decoder.Decode(&asked); err != nil {
		return err
	}
	setDefaults(asked.Policy.Spec.MatchConstraints)
	asked.dropNamespaces()
	ctx, cancel := context.WithTimeout(context.Background(), startSeconds*time.Second)
	defer cancel()
	plugin, err := start(ctx, &asked)
	if err != nil {
		return err
	}
	kinds := admission.NewObjectInterfacesFromScheme(runtime.NewScheme())
	answers := make([]string, len(asked.Requests))
	for i, each := range asked.Requests {
		if err := plugin.Validate(ctx, each.attributes(), kinds); err != nil {
			answers[i] = err.Error()
		}
	}
	return json.NewEncoder(os.Stdout).Encode(answers)
}

// setDefaults fills in what an API server does before it stores a policy.
func setDefaults(constraints *admissionv1.MatchResources) {
	equivalent, allScopes := admissionv1.Equivalent, admissionv1.AllScopes
	constraints.MatchPolicy = &equivalent
	constraints.NamespaceSelector, constraints.ObjectSelector = &metav1.LabelSelector{}, &metav1.LabelSelector{}
	for i := range constraints.ResourceRules {
		constraints.ResourceRules[i].Scope = &allScopes
	}
}

// dropNamespaces takes out what an API server does, too: kustomize does not know these kinds to have none.
func (q *question) dropNamespaces() {
	q.Policy.Namespace, q.Binding.Namespace = "", ""
}

// Authorize answers as RBAC does, for the policy's own questions: by cluster roles.
func (q *question) Authorize(_ context.Context, asked authorizer.Attributes) (authorizer.Decision, string, error) {
	for _, binding := range q.RoleBindings {
		for _, subject := range binding.Subjects {
			if names(subject, asked.GetUser()) && q.grants(binding.RoleRef.Name, asked) {
				return authorizer.DecisionAllow, "", nil
			}
		}
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func names(subject rbacv1.Subject, who user.Info) bool {
	switch subject.Kind {
	case rbacv1.ServiceAccountKind:
		return who.GetName() == "system:serviceaccount:"+subject.Namespace+":"+subject.Name
	case rbacv1.GroupKind:
		return slices.Contains(who.GetGroups(), subject.Name)
	default:
		return who.GetName() == subject.Name
	}
}

func (q *question) grants(name string, asked authorizer.Attributes) bool {
	resource := asked.GetResource()
	if asked.GetSubresource() != "" {
		resource += "/" + asked.GetSubresource()
	}
	for _, role := range q.Roles {
		for _, rule := range role.Rules {
			if role.Name == name && has(rule.Verbs, asked.GetVerb()) && has(rule.APIGroups, asked.GetAPIGroup()) && has(rule.Resources, resource) {
				return true
			}
		}
	}
	return false
}

func has(found []string, wanted string) bool {
	return slices.Contains(found, wanted) || slices.Contains(found, "*")
}

// start runs the plugin as an API server does, on a store that holds the policy and its binding.
func start(ctx context.Context, asked *question) (*validating.Plugin, error) {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	client := fake.NewClientset(&asked.Policy, &asked.Binding, namespace)
	factory := informers.NewSharedInformerFactory(client, 0)
	kinds := meta.NewDefaultRESTMapper(nil)
	plugin := validating.NewPlugin(nil)
	initializer.New(
		client, dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()), factory, asked,
		featuregate.NewFeatureGate(), compatibility.DefaultBuildEffectiveVersion(), ctx.Done(), kinds,
	).Initialize(plugin)
	plugin.SetRESTMapper(kinds)
	if err := plugin.ValidateInitialization(); err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	if !plugin.WaitForReady() {
		return nil, fmt.Errorf("the plugin was not ready after %d s", startSeconds)
	}
	return plugin, nil
}

func (r *request) attributes() admission.Attributes {
	who := &user.DefaultInfo{Name: r.User, Groups: r.Groups, Extra: r.Extra}
	return admission.NewAttributesRecord(
		r.wrap(r.Object), r.wrap(r.OldObject), r.kind(), r.Namespace, r.Name,
		schema.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Resource},
		r.Subresource, r.Operation, nil, false, who,
	)
}

func (r *request) kind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: r.KindGroup, Version: r.Version, Kind: r.Kind}
}

func (r *request) wrap(object map[string]any) runtime.Object {
	if object == nil {
		return nil
	}
	wrapped := &unstructured.Unstructured{Object: object}
	wrapped.SetGroupVersionKind(r.kind())
	return wrapped
}
