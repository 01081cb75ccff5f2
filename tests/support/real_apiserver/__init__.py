"""A real etcd and kube-apiserver: accounts, objects and kubectl in it, and a recorder before it."""
