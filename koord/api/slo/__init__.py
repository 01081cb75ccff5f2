"""The NodeSLO of a node and the ConfigMap that all of them are made from."""
