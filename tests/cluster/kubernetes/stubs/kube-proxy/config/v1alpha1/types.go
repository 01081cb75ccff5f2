// Package v1alpha1 stands in for the configuration of kube-proxy, whose module registries may lack.
//
// It has what the generated OpenAPI code of kube-apiserver names, and nothing else: no server here
// reads such a configuration.
package v1alpha1

const prefix = "io.k8s.kube-proxy.config.v1alpha1."

type (
	DetectLocalConfiguration        struct{}
	KubeProxyConfiguration          struct{}
	KubeProxyConntrackConfiguration struct{}
	KubeProxyIPTablesConfiguration  struct{}
	KubeProxyIPVSConfiguration      struct{}
	KubeProxyNFTablesConfiguration  struct{}
	KubeProxyWinkernelConfiguration struct{}
)

func (DetectLocalConfiguration) OpenAPIModelName() string { return prefix + "DetectLocalConfiguration" }
func (KubeProxyConfiguration) OpenAPIModelName() string   { return prefix + "KubeProxyConfiguration" }
func (KubeProxyConntrackConfiguration) OpenAPIModelName() string {
	return prefix + "KubeProxyConntrackConfiguration"
}
func (KubeProxyIPTablesConfiguration) OpenAPIModelName() string {
	return prefix + "KubeProxyIPTablesConfiguration"
}
func (KubeProxyIPVSConfiguration) OpenAPIModelName() string {
	return prefix + "KubeProxyIPVSConfiguration"
}
func (KubeProxyNFTablesConfiguration) OpenAPIModelName() string {
	return prefix + "KubeProxyNFTablesConfiguration"
}
func (KubeProxyWinkernelConfiguration) OpenAPIModelName() string {
	return prefix + "KubeProxyWinkernelConfiguration"
}
