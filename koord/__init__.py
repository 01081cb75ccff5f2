"""Code that all daemons share: wire types, the API server's client, the component base."""
