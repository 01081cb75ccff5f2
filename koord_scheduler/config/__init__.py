"""The configuration of koord-scheduler: what profiles are made of."""
