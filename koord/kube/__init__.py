"""The API server: configuration, requests, watches. Nothing here is imported in standalone mode.

find_config() says where the server is; Transport carries bytes to it, ApiClient speaks Kubernetes
over it, and a Reflector keeps a copy of a collection that follows it. Modules are imported one by
one, so that a user of an error class does not load the HTTP library.
"""
